"""The rows of the miniature experiment, and the command line of each step. Pure.

A row is a training method under a name. With each of its seeds it trains (``fit``), then answers
the held-out problems greedily and once more sampled, every turn recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from experiments.commands import Command
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.recipes.dialogues import SelfVerifying

Task = Literal["countdown", "arithmetic"]
BOTH: tuple[Task, ...] = ("countdown", "arithmetic")
SEEDS = (42, 43, 44, 45, 46)
"""Of the rows on both tasks; the others have the first three."""
EXPERIMENT = {"countdown": "miniature", "arithmetic": "miniature_arithmetic"}
"""The layer with the scale and the data sets that all rows share."""
CANDIDATE_RATE = 4e-4
"""Learning rate of SVR+, which was chosen after whole trainings and not tuned."""
HOW = ("greedy", "sampled")
"""How turns are decoded."""
VOTES = "configs/eval/majority_vote.yaml"
VOTE_COUNTS = (1, 3, 5, 10)
"""Numbers of samples that vote; a vote of one is that sample."""
TEMPERATURE = 0.9
"""Temperature of training and of the sampled evaluation."""
HORIZON = 3
"""Turns per trajectory in training."""
RUNS, RESULTS = Path("runs/miniature"), Path("experiments/miniature/results")
"""Where runs leave what they make, and what is published of each task."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    """Name in folders and on the command line."""
    title: str
    """Name in tables and figures."""
    tasks: tuple[Task, ...] = ("countdown",)
    layers: tuple[str, ...] = ()
    """Configurations between the embedded run's and the experiment's own."""
    steps: int | None = None
    """Of its training, where it is longer than that of the others."""
    rate_of: str | None = None
    """The row whose learning rate it takes; None: its own is tuned."""
    policy_of: str | None = None
    """The row whose policies are judged under another protocol; None: the row's own."""
    trained: bool = True
    """False: the shipped policy is judged, which all trainings start from."""
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

    @property
    def rule(self) -> StopRule | None:
        """What ends its trajectories before all turns are made; None without a self-check."""
        check = self.interface
        return SelfVerifying(check).applied_rule(Confident()) if check else None


def _method(name: str, title: str, **more: Any) -> Row:
    layers = () if name == "svr" else (f"configs/methods/{name}.yaml",)
    return Row(**{"name": name, "title": title, "layers": layers} | more)


def _ablation(name: str, title: str, **more: Any) -> Row:
    layers = (f"configs/ablations/{name}.yaml",)
    own = {"rate_of": "svr", "interface": "joint", "layers": layers}
    return _method(name, title, **own | more)


def _variant(name: str, title: str, **more: Any) -> Row:
    return _method(name, title, interface="joint", **more)


def _fresh(row: Row) -> Row:
    """A row whose policies answer the question anew in each turn, instead of refining."""
    title = f"{row.title}, fresh turns"
    own = replace(row, name=f"{row.name}_fresh", title=title, policy_of=row.name)
    return replace(own, single=True, fresh=True, votes=False)


def _longer(row: Row, steps: int) -> Row:
    """A row trained for more steps, at the learning rate of the short training."""
    return replace(
        row,
        name=f"{row.name}_{steps}",
        title=f"{row.title}, {steps} steps",
        tasks=("countdown",),
        rate_of=row.name,
        steps=steps,
    )


_GRPO = _method("grpo", "GRPO", tasks=BOTH, single=True, votes=True)
_GRPO_MT = _method("grpo_mt", "GRPO-MT", tasks=BOTH)
_IGRPO = _method("igrpo", "iGRPO", tasks=BOTH, single=True)
_RLCR = _method("rlcr", "RLCR", tasks=BOTH, single=True, interface="confidence")
_SVR = _method("svr", "SVR", tasks=BOTH, interface="joint")
_SVR_PLUS = _variant("svr_plus", "SVR+", tasks=BOTH)
_WARM_START = Row(
    name="warm_start", title="warm start", tasks=BOTH, trained=False, interface="joint"
)
ROWS = (
    _WARM_START,
    replace(
        _GRPO_MT, name="warm_start_neutral", title="warm start, neutral prompts", trained=False
    ),
    _GRPO,
    _method("gspo_published", "GSPO (published)", single=True),
    _method("gspo_matched", "GSPO (matched)", single=True),
    _GRPO_MT,
    _IGRPO,
    replace(_GRPO_MT, name="igrpo_turns", title="iGRPO, ten turns", policy_of="igrpo"),
    _method("murphy", "Murphy (chain)", tasks=BOTH),
    _method("murphy_tree", "Murphy (tree)", rate_of="murphy"),
    _method("mlmt_rl", "MLMT-RL"),
    _method("scrpo", "ScRPO (chain)"),
    _RLCR,
    _method("rlcr_log", "RLCR, log score", single=True, rate_of="rlcr", interface="confidence"),
    _method("rlcr_turns", "RLCR, three turns", tasks=BOTH, interface="confidence"),
    _method("oracle", "Oracle-guided", uses_labels=True),
    _SVR,
    _ablation("without_verify", "w/o R_verify", tasks=BOTH),
    _ablation("without_cal", "w/o R_cal"),
    _ablation("without_over", "w/o R_over"),
    _ablation("without_ready", "w/o R_ready"),
    _ablation("single_turn", "Single-turn SVR", single=True),
    _ablation("verdict_only", "Verdict-only", interface="verdict"),
    _ablation("confidence_only", "Confidence-only", interface="confidence"),
    _variant("svr_proper", "SVR, proper score", rate_of="svr"),
    _variant("svr_turns", "SVR, random turn", rate_of="svr"),
    _variant("svr_fast", "SVR, rate of SVR+", rate_of="svr_plus", layers=()),
    _SVR_PLUS,
    _variant("svr_plus_matched", "SVR+, 8 sequences", tasks=BOTH, rate_of="svr_plus"),
    *(_fresh(row) for row in (_WARM_START, _GRPO, _RLCR, _SVR, _SVR_PLUS)),
    *(_longer(row, steps) for row in (_GRPO_MT, _SVR, _SVR_PLUS) for steps in (200, 400)),
)
BY_NAME: Mapping[str, Row] = {row.name: row for row in ROWS}


def rows_of(task: Task) -> list[Row]:
    """The rows that are run on a task."""
    return [row for row in ROWS if task in row.tasks]


def seeds_of(row: Row) -> tuple[int, ...]:
    """The seeds of a row; untrained rows have one, since greedy answers do not depend on it."""
    return SEEDS[:1] if not row.trained else SEEDS if row.tasks == BOTH else SEEDS[:3]


def layered(row: Row, task: Task = "countdown") -> tuple[str, ...]:
    """The configuration of a row: the embedded run, the row's layers, the experiment's scale."""
    scale = f"configs/experiments/{EXPERIMENT[task]}.yaml"
    files = (f"configs/{task}_tiny.yaml", *row.layers, scale)
    return tuple(part for path in files for part in ("--config", path))


def folder_of(row: Row, seed: int, task: Task) -> Path:
    """Where a row with a seed leaves what it makes."""
    return RUNS / task / f"{row.name}-{seed}"


def commands(row: Row, seed: int, task: Task, rates: Mapping[str, float]) -> list[Command]:
    """The steps of a row with one seed: training, evaluations on held-out problems, voting.

    ``rates`` are the learning rates of the tuned rows by name.
    """
    folder = folder_of(row, seed, task)
    source = folder_of(BY_NAME[row.policy_of or row.name], seed, task)
    policy = f"{source}/fit/policy" if row.trained else f"embedded:{task}-tiny"

    def command(name: str, result: str, *own: str) -> Command:
        verb, root = "fit" if name == "fit" else "test", folder / name
        words = (*layered(row, task), "--seed_everything", str(seed), *own)
        return Command(
            name=f"{task}/{row.name}-{seed}/{name}",
            folder=root,
            arguments=("svr_lightning", verb, *words, "--trainer.default_root_dir", str(root)),
            result=root / result,
        )

    found = []
    if row.trained and row.policy_of is None:
        rate = {**rates, "svr_plus": CANDIDATE_RATE}[row.rate_of or row.name]
        steps = str(row.steps)
        longer = ("--trainer.max_steps", steps, "--trainer.val_check_interval", steps)
        flags = (*(longer if row.steps else ()), "--model.optimizer.lr", f"{rate:g}")
        found.append(command("fit", "policy/config.json", *flags))
    every = ("--model.evaluation.adaptive", "false")
    sampled = ("--model.evaluation.temperature", str(TEMPERATURE), *every)
    turns = "--model.evaluation.max_turns"
    fresh = (turns, "10", "--model.evaluation.fresh_turns", "true")
    evaluations = {
        "greedy": (*every, *((turns, "1") if row.fresh else ())),
        "sampled": (*sampled, *(fresh if row.fresh else ())),
        **({"votes": ("--config", VOTES)} if row.votes else {}),
    }
    for name, flags in evaluations.items():
        judged = (*flags, "--model.policy.path", policy)
        found.append(command(name, "eval/test/results.json", *judged))
    return found
