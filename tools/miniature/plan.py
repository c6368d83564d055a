"""The plan of the miniature experiment: rows, seeds, and the command line of each step. Pure.

A row is a training method under a name; a cell is a row with one seed. A cell trains (``fit``),
then answers the held-out problems greedily and once more sampled, every turn recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from svr_lightning.core.parsing import SelfCheckFields

Family = Literal["single", "multi", "svr"]
"""Rows that share a learning rate: single-turn methods, multi-turn methods, SVR's relatives."""
Group = Literal["method", "ablation", "variant", "control"]
PaperRow = tuple[str, str, float]
"""Table and row of the paper, and the All-7 accuracy there."""

TINY = "configs/countdown_tiny.yaml"
MINIATURE = "configs/experiments/miniature.yaml"
VOTES = "configs/eval/majority_vote.yaml"
START = "embedded:countdown-tiny"
SEEDS = (42, 43, 44)
TUNING_SEED = 41
CANDIDATE_SEEDS = (41,)
RATES = (4e-4, 8e-4, 1.6e-3)
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
    family: Family
    layers: tuple[str, ...] = ()
    """Configurations between the embedded run's and the experiment's own."""
    flags: tuple[str, ...] = ()
    """Further flags of every command of the row."""
    trained: bool = True
    """False: the shipped policy is judged, which all trainings start from."""
    policy_of: str | None = None
    """The row whose policies are judged under another protocol; None: the row's own."""
    single: bool = False
    """Trained and judged on one turn."""
    interface: SelfCheckFields | None = None
    """Fields of its policies' self-check; None without a self-check."""
    uses_labels: bool = False
    """Whether its prompts show labels, in evaluation too."""
    votes: bool = False
    """Whether samples for majority voting are drawn from its policies."""
    paper: PaperRow | None = None
    """The paper's result."""


def _method(name: str, title: str, family: Family, paper: tuple[str, float], **more: Any) -> Row:
    return Row(
        name=name,
        title=title,
        group="method",
        family=family,
        layers=() if name == "svr" else (f"configs/methods/{name}.yaml",),
        paper=("main_results", *paper),
        **more,
    )


def _ablation(
    name: str,
    title: str,
    paper: tuple[str, str, float],
    interface: SelfCheckFields = "joint",
    **more: Any,
) -> Row:
    return Row(
        name=name,
        title=title,
        group="ablation",
        family="svr",
        layers=(f"configs/ablations/{name}.yaml",),
        interface=interface,
        paper=paper,
        **more,
    )


def _variant(name: str, title: str) -> Row:
    return Row(
        name=name,
        title=title,
        group="variant",
        family="svr",
        layers=(f"configs/methods/{name}.yaml",),
        interface="joint",
    )


ROWS = (
    Row(
        name="warm_start",
        title="warm start",
        group="method",
        family="svr",
        trained=False,
        interface="joint",
        paper=("main_results", "Qwen3.5-2B", 0.420),
    ),
    Row(
        name="warm_start_neutral",
        title="warm start, neutral prompts",
        group="control",
        family="multi",
        layers=("configs/methods/grpo_mt.yaml",),
        trained=False,
    ),
    Row(
        name="string_rule",
        title="warm start, string rule",
        group="control",
        family="svr",
        flags=("--model.recipe", "tools.miniature.string_rule.StringRule"),
        trained=False,
        interface="joint",
    ),
    _method("grpo", "GRPO", "single", ("GRPO", 0.427), single=True, votes=True),
    _method(
        "gspo_published",
        "GSPO (published)",
        "single",
        ("GSPO", 0.385),
        single=True,
    ),
    _method("gspo_matched", "GSPO (matched)", "single", ("GSPO", 0.385), single=True),
    _method("grpo_mt", "GRPO-MT", "multi", ("GRPO-MT", 0.464)),
    _method("igrpo", "iGRPO", "single", ("iGRPO", 0.415), single=True),
    Row(
        name="igrpo_turns",
        title="iGRPO, ten turns",
        group="method",
        family="single",
        layers=("configs/methods/igrpo.yaml",),
        flags=("--model.recipe.init_args.evaluate", "fixed"),
        policy_of="igrpo",
        paper=("main_results", "iGRPO", 0.415),
    ),
    _method("murphy", "Murphy (chain)", "multi", ("Murphy", 0.488)),
    _method("murphy_tree", "Murphy (tree)", "multi", ("Murphy", 0.488)),
    _method("mlmt_rl", "MLMT-RL", "multi", ("MLMT-RL", 0.458)),
    _method("scrpo", "ScRPO (chain)", "multi", ("ScRPO", 0.434)),
    _method("scrpo_pool", "ScRPO (pool)", "multi", ("ScRPO", 0.434)),
    _method("oracle", "Oracle-guided", "multi", ("Oracle-guided (fixed)", 0.519), uses_labels=True),
    _method("svr", "SVR", "svr", ("SVR (ours)", 0.563), interface="joint"),
    _ablation("without_verify", "w/o R_verify", ("app_reward_acc", "w/o Rverify", 0.528)),
    _ablation("without_cal", "w/o R_cal", ("app_reward_acc", "w/o Rcal", 0.536)),
    _ablation("without_over", "w/o R_over", ("app_reward_acc", "w/o Rover", 0.518)),
    _ablation("without_ready", "w/o R_ready", ("app_reward_acc", "w/o Rready", 0.494)),
    _ablation(
        "single_turn", "Single-turn SVR", ("app_interface", "Single-turn SVR", 0.471), single=True
    ),
    _ablation(
        "verdict_only",
        "Verdict-only",
        ("app_interface", "Verdict-only", 0.529),
        "verdict",
    ),
    _ablation(
        "confidence_only",
        "Confidence-only",
        ("app_interface", "Confidence-only", 0.482),
        "confidence",
    ),
    _variant("svr_proper", "SVR, proper score"),
    _variant("svr_turns", "SVR, random turn"),
    _variant("svr_plus", "SVR+"),
)
BY_NAME: Mapping[str, Row] = {row.name: row for row in ROWS}

CONTROLS = ("warm_start", "warm_start_neutral", "string_rule", "grpo_mt", "svr", "svr_plus")
"""Rows that are also shown under a stop that needs no self-check: the first repeated answer."""

REPRESENTATIVES: Mapping[Family, str] = {"single": "grpo", "multi": "grpo_mt", "svr": "svr"}
"""The row whose learning rate its family takes."""

CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    name: {
        "model": {
            "recipe": {
                "class_path": "svr_lightning.recipes.svr_plus.SVRPlus",
                "init_args": {"turns": turns, "sections": sections, "proper": proper},
            }
        }
    }
    for name, (turns, sections, proper) in {
        "drawn": ("drawn", False, False),
        "drawn_proper": ("drawn", False, True),
        "drawn_sections": ("drawn", True, False),
        "drawn_sections_proper": ("drawn", True, True),
        "all": ("all", False, False),
        "all_sections": ("all", True, False),
    }.items()
}
"""Configuration layers among which ``svr_plus`` was chosen, on the development problems."""
CHOSEN = "svr_plus"
"""The row whose layer is the chosen candidate."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all commands share."""

    out: str = "runs/miniature"
    rates: Mapping[Family, float] = field(default_factory=dict)
    """Learning rate of each family."""
    extra: tuple[str, ...] = ()
    """Further flags of every ``fit``."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One step of a cell."""

    name: str
    folder: str
    """The cell's folder."""
    arguments: tuple[str, ...]
    """After ``python -m svr_lightning``."""
    result: str
    """A file that exists once the step is done."""
    checkpoint: str | None = None
    """If this file exists, the command resumes with ``--ckpt_path last``."""

    @property
    def line(self) -> str:
        """As a user types it."""
        return " ".join(("python -m svr_lightning", *self.arguments))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Commands that run one after the other in one folder."""

    name: str
    commands: tuple[Command, ...]


def layered(row: Row) -> tuple[str, ...]:
    """The configuration of a row: the embedded run, the row's layers, the experiment's scale."""
    files = (TINY, *row.layers, MINIATURE)
    return (*(part for path in files for part in ("--config", path)), *row.flags)


def fit(row: Row, seed: int, rate: float, folder: str, extra: tuple[str, ...] = ()) -> Command:
    """The training of one cell; it leaves a policy and its development accuracy."""
    arguments = (
        *("fit", *layered(row), "--seed_everything", str(seed)),
        *("--model.optimizer.lr", f"{rate:g}", *extra),
        *("--trainer.default_root_dir", folder),
    )
    return Command(
        name="fit",
        folder=folder,
        arguments=arguments,
        result=f"{folder}/policy/config.json",
        checkpoint=f"{folder}/checkpoints/last.ckpt",
    )


def judge(row: Row, seed: int, folder: str, policy: str) -> tuple[Command, ...]:
    """The evaluations of one cell on held-out problems, and voting if the row has it."""
    uncensored = ("--model.evaluation.adaptive", "false")
    sampled = ("--model.evaluation.temperature", str(TEMPERATURE), *uncensored)
    pools = f"{folder}/eval/votes/votes.jsonl"

    def test(name: str, flags: tuple[str, ...], root: str, result: str) -> Command:
        arguments = (
            *("test", *layered(row), *flags, "--seed_everything", str(seed)),
            *("--model.policy.path", policy, "--trainer.default_root_dir", root),
        )
        return Command(name=name, folder=folder, arguments=arguments, result=result)

    commands = [
        test("greedy", uncensored, folder, f"{folder}/eval/test/results.json"),
        test("sampled", sampled, f"{folder}/sampled", f"{folder}/sampled/eval/test/results.json"),
    ]
    if row.votes:
        commands.append(test("votes", ("--config", VOTES), folder, pools))
        counts = tuple(map(str, VOTE_COUNTS))
        vote = ("vote", "--votes", pools, "--k", *counts)
        result = f"{folder}/eval/votes/votes.json"
        commands.append(Command(name="vote", folder=folder, arguments=vote, result=result))
    return tuple(commands)


def folder_of(out: str, row: Row, seed: int) -> str:
    """The folder of a cell."""
    return f"{out}/{row.name}-{seed}"


def seeds_of(row: Row, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of a row; one for untrained rows, whose greedy answers do not depend on it."""
    return seeds if row.trained else seeds[:1]


def cell(row: Row, seed: int, settings: Settings, stages: tuple[str, ...]) -> Cell:
    """The steps of one cell that belong to ``stages``, of ``train`` and ``judge``."""
    folder = folder_of(settings.out, row, seed)
    commands: tuple[Command, ...] = ()
    trains = row.trained and row.policy_of is None
    if "train" in stages and trains:
        commands += (fit(row, seed, settings.rates[row.family], folder, settings.extra),)
    if "judge" in stages:
        source = folder_of(settings.out, BY_NAME[row.policy_of or row.name], seed)
        policy = f"{source}/policy" if row.trained else START
        commands += judge(row, seed, folder, policy)
    return Cell(name=f"{row.name}-{seed}", commands=commands)


def rate_cell(family: Family, rate: float, settings: Settings) -> Cell:
    """A training that tries a learning rate for a family."""
    row = BY_NAME[REPRESENTATIVES[family]]
    name = f"{row.name}-{rate:g}"
    folder = f"{settings.out}/tune/{name}"
    command = fit(row, TUNING_SEED, rate, folder, (*TUNING_FLAGS, *settings.extra))
    return Cell(name=f"tune/{name}", commands=(command,))


def candidate_cell(name: str, seed: int, settings: Settings) -> Cell:
    """A training of a candidate for ``svr_plus``."""
    row = replace(BY_NAME["svr"], layers=(candidate_layer(name, settings),))
    folder = f"{settings.out}/tune/{name}-{seed}"
    extra = (*TUNING_FLAGS, *settings.extra)
    command = fit(row, seed, settings.rates["svr"], folder, extra)
    return Cell(name=f"tune/{name}-{seed}", commands=(command,))


def candidate_layer(name: str, settings: Settings) -> str:
    """The file that a candidate's layer is written to."""
    return f"{settings.out}/tune/{name}.yaml"
