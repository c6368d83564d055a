"""The plan of the miniature experiment: rows, seeds, and the command line of each step. Pure.

A row is a training method under a name; a cell is a row with one seed. A cell trains (``fit``),
then answers the held-out problems greedily and once more sampled, every turn recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from svr_lightning.core.parsing import SelfCheckFields

Group = Literal["method", "ablation", "variant", "control", "fresh"]
PaperRow = tuple[str, str, float]
"""Table and row of the paper, and the All-7 accuracy there."""

Task = Literal["countdown", "arithmetic"]


@dataclass(frozen=True, kw_only=True)
class Bed:
    """What the experiment runs on."""

    config: str
    """The embedded run."""
    experiment: str
    """The scale and the data sets that all rows share."""
    start: str
    """The policy that all trainings start from."""
    published: str
    """The folder of its results."""


BEDS: Mapping[Task, Bed] = {
    "countdown": Bed(
        config="configs/countdown_tiny.yaml",
        experiment="configs/experiments/miniature.yaml",
        start="embedded:countdown-tiny",
        published="experiments/miniature/results/countdown",
    ),
    "arithmetic": Bed(
        config="configs/arithmetic_tiny.yaml",
        experiment="configs/experiments/miniature_arithmetic.yaml",
        start="embedded:arithmetic-tiny",
        published="experiments/miniature/results/arithmetic",
    ),
}
BOTH: tuple[Task, ...] = ("countdown", "arithmetic")
VOTES = "configs/eval/majority_vote.yaml"
SEEDS = (42, 43, 44, 45, 46)
"""Of the rows on both tasks; the others have the first three."""
TUNING_SEED = 41
CANDIDATE_SEEDS = (41,)
CANDIDATE_RATE = 4e-4
"""Candidates of SVR+ share a learning rate that is near the best of most rows. SVR+ keeps it: it is
chosen after a whole training, and a tuning of 40 steps would take another."""
RATES = (4e-4, 8e-4, 1.6e-3)
"""Learning rates that every tuned row tries. Where the best is at an end, the next one is tried."""
MORE_RATES = 3
"""So many at most beyond either end."""
VOTE_COUNTS = (1, 3, 5, 10)
"""Numbers of samples that vote; a vote of one is that sample."""
VOTE_PAPER: Mapping[int, float] = {3: 0.504, 5: 0.529, 10: 0.564}
"""All-7 accuracy of Maj@k over GRPO in the paper's table on majority voting."""
TUNING_FLAGS = ("--trainer.max_steps", "40", "--trainer.val_check_interval", "40")
"""Tuning trains for 40 of the 100 steps."""
TEMPERATURE = 0.9
"""Temperature of training and of the sampled evaluation."""
HORIZON = 3
"""Turns per trajectory in training."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    """Name in folders and on the command line."""
    title: str
    """Name in tables and figures."""
    group: Group
    tasks: tuple[Task, ...] = ("countdown",)
    """The tasks that it is run on."""
    rate_of: str | None = None
    """The row whose learning rate it takes; None: its own is tuned."""
    layers: tuple[str, ...] = ()
    """Configurations between the embedded run's and the experiment's own."""
    flags: tuple[str, ...] = ()
    """Further flags of every command of the row."""
    fit_flags: tuple[str, ...] = ()
    """Further flags of its training."""
    trained: bool = True
    """False: the shipped policy is judged, which all trainings start from."""
    policy_of: str | None = None
    """The row whose policies are judged under another protocol; None: the row's own."""
    single: bool = False
    """Trained and judged on one turn."""
    fresh: bool = False
    """Sampled turns are independent answers to the first prompt. Greedy ones would be the same, so
    that one is judged."""
    interface: SelfCheckFields | None = None
    """Fields of its policies' self-check; None without a self-check."""
    uses_labels: bool = False
    """Whether its prompts show labels, in evaluation too."""
    votes: bool = False
    """Whether samples for majority voting are drawn from its policies."""
    paper: PaperRow | None = None
    """The paper's result."""


def _method(
    name: str, title: str, paper: tuple[str, float] | None, group: Group = "method", **more: Any
) -> Row:
    return Row(
        name=name,
        title=title,
        group=group,
        layers=() if name == "svr" else (f"configs/methods/{name}.yaml",),
        paper=paper and ("main_results", *paper),
        **more,
    )


def _ablation(
    name: str, title: str, paper: PaperRow, interface: SelfCheckFields = "joint", **more: Any
) -> Row:
    return Row(
        name=name,
        title=title,
        group="ablation",
        rate_of="svr",
        layers=(f"configs/ablations/{name}.yaml",),
        interface=interface,
        paper=paper,
        **more,
    )


def _variant(name: str, title: str, **more: Any) -> Row:
    return _method(name, title, None, "variant", interface="joint", **more)


def _calibrated(name: str, title: str, **more: Any) -> Row:
    return _method(name, title, None, interface="confidence", **more)


def _fresh(row: Row) -> Row:
    """A row whose policies answer the question anew in each turn, instead of refining."""
    return replace(
        row,
        name=f"{row.name}_fresh",
        title=f"{row.title}, fresh turns",
        group="fresh",
        policy_of=row.name,
        single=True,
        fresh=True,
        votes=False,
        paper=None,
    )


def _longer(row: Row, steps: int) -> Row:
    """A row trained for more steps, at the learning rate of the short training."""
    flags = ("--trainer.max_steps", str(steps), "--trainer.val_check_interval", str(steps))
    return replace(
        row,
        name=f"{row.name}_{steps}",
        title=f"{row.title}, {steps} steps",
        group="variant" if row.interface else "method",
        tasks=("countdown",),
        rate_of=row.name,
        fit_flags=flags,
        paper=None,
    )


_GRPO = _method("grpo", "GRPO", ("GRPO", 0.427), tasks=BOTH, single=True, votes=True)
_GRPO_MT = _method("grpo_mt", "GRPO-MT", ("GRPO-MT", 0.464), tasks=BOTH)
_RLCR = _calibrated("rlcr", "RLCR", tasks=BOTH, single=True)
_SVR = _method("svr", "SVR", ("SVR (ours)", 0.563), tasks=BOTH, interface="joint")
_SVR_PLUS = _variant("svr_plus", "SVR+", tasks=BOTH)
_SVR_FAST = replace(_SVR, name="svr_fast", title="SVR, rate of SVR+", rate_of="svr_plus")
ROWS = (
    Row(
        name="warm_start",
        title="warm start",
        group="method",
        tasks=BOTH,
        trained=False,
        interface="joint",
        paper=("main_results", "Qwen3.5-2B", 0.420),
    ),
    Row(
        name="warm_start_neutral",
        title="warm start, neutral prompts",
        group="control",
        tasks=BOTH,
        layers=("configs/methods/grpo_mt.yaml",),
        trained=False,
    ),
    _GRPO,
    _method("gspo_published", "GSPO (published)", ("GSPO", 0.385), single=True),
    _method("gspo_matched", "GSPO (matched)", ("GSPO", 0.385), single=True),
    _GRPO_MT,
    _method("igrpo", "iGRPO", ("iGRPO", 0.415), tasks=BOTH, single=True),
    Row(
        name="igrpo_turns",
        title="iGRPO, ten turns",
        group="method",
        tasks=BOTH,
        layers=("configs/methods/igrpo.yaml",),
        flags=("--model.recipe.init_args.evaluate", "fixed"),
        policy_of="igrpo",
        paper=("main_results", "iGRPO", 0.415),
    ),
    _method("murphy", "Murphy (chain)", ("Murphy", 0.488), tasks=BOTH),
    _method("murphy_tree", "Murphy (tree)", ("Murphy", 0.488), rate_of="murphy"),
    _method("mlmt_rl", "MLMT-RL", ("MLMT-RL", 0.458)),
    _method("scrpo", "ScRPO (chain)", ("ScRPO", 0.434)),
    _RLCR,
    _calibrated("rlcr_log", "RLCR, log score", single=True, rate_of="rlcr"),
    _calibrated("rlcr_turns", "RLCR, three turns", tasks=BOTH),
    _method("oracle", "Oracle-guided", ("Oracle-guided (fixed)", 0.519), uses_labels=True),
    _SVR,
    _ablation(
        "without_verify", "w/o R_verify", ("app_reward_acc", "w/o Rverify", 0.528), tasks=BOTH
    ),
    _ablation("without_cal", "w/o R_cal", ("app_reward_acc", "w/o Rcal", 0.536)),
    _ablation("without_over", "w/o R_over", ("app_reward_acc", "w/o Rover", 0.518)),
    _ablation("without_ready", "w/o R_ready", ("app_reward_acc", "w/o Rready", 0.494)),
    _ablation(
        "single_turn", "Single-turn SVR", ("app_interface", "Single-turn SVR", 0.471), single=True
    ),
    _ablation("verdict_only", "Verdict-only", ("app_interface", "Verdict-only", 0.529), "verdict"),
    _ablation(
        "confidence_only",
        "Confidence-only",
        ("app_interface", "Confidence-only", 0.482),
        "confidence",
    ),
    _variant("svr_proper", "SVR, proper score", rate_of="svr"),
    _variant("svr_turns", "SVR, random turn", rate_of="svr"),
    replace(_SVR_FAST, group="variant", tasks=("countdown",), paper=None),
    _SVR_PLUS,
    _variant("svr_plus_matched", "SVR+, 8 sequences", tasks=BOTH, rate_of="svr_plus"),
    *(_fresh(row) for row in (_GRPO, _RLCR, _SVR, _SVR_PLUS)),
    *(_longer(row, steps) for row in (_GRPO_MT, _SVR, _SVR_PLUS) for steps in (200, 400)),
)
BY_NAME: Mapping[str, Row] = {row.name: row for row in ROWS}

CHOSEN = "svr_plus"
"""The row whose layer is the chosen candidate."""

TUNED_ROWS = tuple(
    row.name
    for row in ROWS
    if row.trained and not row.policy_of and not row.rate_of and row.name != CHOSEN
)
"""Rows with a learning rate of their own."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all commands share."""

    out: str = "runs/miniature"
    task: Task = "countdown"
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rate of each tuned row."""
    extra: tuple[str, ...] = ()
    """Further flags of every ``fit``."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One step of a cell."""

    name: str
    folder: str
    """The cell's folder."""
    arguments: tuple[str, ...]
    """After ``python -m MODULE``."""
    result: str
    """A file that exists once the step is done."""
    checkpoint: str | None = None
    """If this file exists, the command resumes with ``--ckpt_path last``."""
    module: str = "svr_lightning"

    @property
    def line(self) -> str:
        """As a user types it."""
        return " ".join(("python -m", self.module, *self.arguments))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Commands that run one after the other in one folder."""

    name: str
    commands: tuple[Command, ...]


def trains(row: Row) -> bool:
    """Whether it has policies of its own."""
    return row.trained and row.policy_of is None


def rows_of(task: Task) -> list[Row]:
    """The rows that are run on a task."""
    return [row for row in ROWS if task in row.tasks]


def layered(row: Row, task: Task = "countdown") -> tuple[str, ...]:
    """The configuration of a row: the embedded run, the row's layers, the experiment's scale."""
    files = (BEDS[task].config, *row.layers, BEDS[task].experiment)
    return (*(part for path in files for part in ("--config", path)), *row.flags)


def fit(
    row: Row, seed: int, rate: float, folder: str, settings: Settings, more: tuple[str, ...] = ()
) -> Command:
    """The training of one cell; it leaves a policy and its development accuracy."""
    arguments = (
        *("fit", *layered(row, settings.task), *row.fit_flags, "--seed_everything", str(seed)),
        *("--model.optimizer.lr", f"{rate:g}", *more, *settings.extra),
        *("--trainer.default_root_dir", folder),
    )
    return Command(
        name="fit",
        folder=folder,
        arguments=arguments,
        result=f"{folder}/policy/config.json",
        checkpoint=f"{folder}/checkpoints/last.ckpt",
    )


def judge(row: Row, seed: int, folder: str, policy: str, task: Task) -> tuple[Command, ...]:
    """The evaluations of one cell on held-out problems, and voting if the row has it."""
    greedy: tuple[str, ...] = ("--model.evaluation.adaptive", "false")
    sampled = ("--model.evaluation.temperature", str(TEMPERATURE), *greedy)
    if row.fresh:
        greedy += ("--model.evaluation.max_turns", "1")
        sampled += ("--model.evaluation.max_turns", "10", "--model.evaluation.fresh_turns", "true")
    pools = f"{folder}/eval/votes/votes.jsonl"

    def test(name: str, flags: tuple[str, ...], root: str, result: str) -> Command:
        arguments = (
            *("test", *layered(row, task), *flags, "--seed_everything", str(seed)),
            *("--model.policy.path", policy, "--trainer.default_root_dir", root),
        )
        return Command(name=name, folder=folder, arguments=arguments, result=result)

    commands = [
        test("greedy", greedy, folder, f"{folder}/eval/test/results.json"),
        test("sampled", sampled, f"{folder}/sampled", f"{folder}/sampled/eval/test/results.json"),
    ]
    if row.votes:
        commands.append(test("votes", ("--config", VOTES), folder, pools))
        counts = tuple(map(str, VOTE_COUNTS))
        vote = ("vote", "--votes", pools, "--k", *counts)
        result = f"{folder}/eval/votes/votes.json"
        commands.append(Command(name="vote", folder=folder, arguments=vote, result=result))
    return tuple(commands)


def out_of(base: str, task: Task) -> str:
    """The experiment's folder on a task."""
    return base if task == "countdown" else f"{base}-{task}"


def folder_of(out: str, row: Row, seed: int) -> str:
    """The folder of a cell."""
    return f"{out}/{row.name}-{seed}"


def seeds_of(row: Row, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of a row: five if it is run on both tasks, else three.

    One for untrained rows, whose greedy answers do not depend on it.
    """
    if not row.trained:
        return seeds[:1]
    return seeds if row.tasks == BOTH else tuple(seed for seed in seeds if seed in SEEDS[:3])


def cell(row: Row, seed: int, settings: Settings, stages: tuple[str, ...]) -> Cell:
    """The steps of one cell that belong to ``stages``, of ``train`` and ``judge``."""
    folder = folder_of(settings.out, row, seed)
    commands: tuple[Command, ...] = ()
    if "train" in stages and trains(row):
        rate = settings.rates[row.rate_of or row.name]
        commands += (fit(row, seed, rate, folder, settings),)
    if "judge" in stages:
        source = folder_of(settings.out, BY_NAME[row.policy_of or row.name], seed)
        policy = f"{source}/policy" if row.trained else BEDS[settings.task].start
        commands += judge(row, seed, folder, policy, settings.task)
    return Cell(name=f"{row.name}-{seed}", commands=commands)
