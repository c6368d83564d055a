"""What a run logs: ``metrics.csv``, and the numbers of a rollout and of a step."""

import csv
import math
import resource
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from torch import Tensor

from svr_lightning.core.metrics import auroc
from svr_lightning.core.rewards import Reward
from svr_lightning.core.stopping import Confident, StopRule, ending
from svr_lightning.core.types import ScoredTurn, StopSignals, Verdict
from svr_lightning.files import write_file
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.dialogues import Dialogue

T = TypeVar("T")
_HEADER = ("step", "key", "value")


class CSVLog(Logger):
    """Writes every value that a training logs as ``step,key,value`` lines, flushed at once.

    Written rows are never changed, and a resumed run only drops those after its checkpoint.
    """

    is_of_training = True
    """Evaluations of their own write nothing here: the lines are those of the run."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"

    @property
    def name(self) -> str:
        """Name of this log."""
        return "metrics"

    @property
    def version(self) -> str:
        """There is one per run."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """The resolved configuration is in ``config.yaml``."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line per metric."""
        if not self.is_of_training:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with self.path.open("a", newline="") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(_HEADER)
            for key, value in metrics.items():
                writer.writerow([step, key, "" if math.isnan(value) else repr(float(value))])

    @rank_zero_only
    def keep(self, is_kept: Callable[[int, str], bool]) -> None:
        """Drop all rows whose step and key are not kept: they are logged again."""
        if not (self.is_of_training and self.path.exists()):
            return
        with self.path.open(newline="") as stream:
            whole = [row for row in csv.reader(stream) if len(row) == 3 and row[0].isdigit()]
        rows_before = [row for row in whole if is_kept(int(row[0]), row[1])]
        kept = StringIO(newline="")
        csv.writer(kept).writerows([_HEADER, *rows_before])
        write_file(self.path, [kept.getvalue()])


MAXIMA = frozenset({"train/ratio_max", "memory/peak"})
"""Logged values that are combined over processes by their maximum, not their mean."""


def gather_lists(values: Sequence[T]) -> list[T]:
    """The values of all ranks, in the order of ranks; every rank must call it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return list(values)
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, list(values))
    return list(chain.from_iterable(gathered))


def combined(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each value's mean over the rows that have it; for :data:`MAXIMA` the maximum."""
    values_of: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            values_of.setdefault(key, []).append(value)
    return {key: max(of) if key in MAXIMA else fmean(of) for key, of in values_of.items()}


def transferred(logged: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """Scalars of an optimizer step's micro-batches as numbers.

    They come from the device in one copy: each copy waits until the device has caught up.
    """
    scalars = [value.detach().double() for row in logged for value in row.values()]
    numbers = iter(torch.stack(scalars).tolist())
    return [{key: next(numbers) for key in row} for row in logged]


def shows_progress(trainer: Any) -> bool:
    """Whether this process shows how far it is: ``trainer.enable_progress_bar`` decides."""
    return trainer.is_global_zero and trainer.progress_bar_callback is not None


def rollout_stats(groups: Sequence[Group], recipe: Recipe, seconds: float) -> dict[str, float]:
    """Rewards, correctness, self-verification and lengths of one rollout, averaged over turns.

    ``seconds`` is how long it took. Correctness is that of answers: feedback between them, as in
    MLMT-RL, does not count.
    """
    turns = [turn for group in groups for trajectory in group.scored for turn in trajectory]
    rewards = [reward for group in groups for rewards in group.rewards for reward in rewards]
    correct = _correct_by_turn(groups, recipe.dialogue)
    stats = {
        "time/rollout": seconds,
        "speed/rollout": sum(turn.completion_tokens for turn in turns) / seconds,
        "train/reward/mean": fmean(chain.from_iterable(group.returns for group in groups)),
        "train/zero_std_groups": fmean(group.degenerate for group in groups),
        "train/resampled_groups": fmean(group.seeds.attempt > 0 for group in groups),
        "train/generations": len(turns) / len(groups),
        "train/accuracy": fmean(chain.from_iterable(correct.values())),
        "train/truncated": fmean(turn.truncated for turn in turns),
        "train/completion_tokens": fmean(turn.completion_tokens for turn in turns),
    }
    for index in sorted(correct):
        stats[f"train/turn{index}/accuracy"] = fmean(correct[index])
    rule = recipe.dialogue.applied_rule(Confident())
    return {**stats, **_reward_terms(rewards), **_self_checks(turns, rule)}


def _correct_by_turn(groups: Sequence[Group], dialogue: Dialogue) -> dict[int, list[bool]]:
    """The labels of every turn that answers its problem, by number of the turn."""
    correct: dict[int, list[bool]] = {}
    for group in groups:
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True):
            for turn, label in zip(trajectory.turns, scored, strict=True):
                if dialogue.answers(turn.index):
                    correct.setdefault(turn.index, []).append(label.correct)
    return correct


def _reward_terms(rewards: Sequence[Reward]) -> dict[str, float]:
    """Means of every term and subtotal; a term that a turn's reward lacks counts as 0."""
    terms_of_turns = [{**reward.subtotals, **reward.terms} for reward in rewards]
    names = dict.fromkeys(name for terms in terms_of_turns for name in terms)
    return {
        f"train/reward/{name}": fmean(terms.get(name, 0.0) for terms in terms_of_turns)
        for name in names
    }


def _self_checks(turns: Sequence[ScoredTurn], rule: StopRule | None) -> dict[str, float]:
    """Statistics of the self-checks; nothing if no turn has one.

    Args:
        turns: of the rollout.
        rule: the recipe's form of the paper's stopping rule, applied to each turn.
    """
    checked = [turn for turn in turns if turn.verdict is not None and turn.confidence is not None]
    if not checked:
        return {}
    confidence = np.array([turn.confidence for turn in checked])
    correct = np.array([turn.correct for turn in checked], dtype=np.int64)
    stats = {
        "train/brier": fmean((confidence - correct) ** 2),
        "train/overconfidence": fmean(
            turn.verdict == Verdict.CORRECT and not turn.correct for turn in checked
        ),
        "train/would_stop": fmean(_stops(rule, turn) for turn in checked),
        "train/confidence/spread": pstdev(confidence.tolist()),
    }
    for verdict in Verdict:
        share = fmean(turn.verdict == verdict for turn in checked)
        stats[f"train/verdict/{verdict.value.lower()}"] = share
    for name, label in (("right", 1), ("wrong", 0)):
        if (correct == label).any():
            stats[f"train/confidence/{name}"] = fmean(confidence[correct == label])
    ranked = auroc(confidence, correct)
    if not math.isnan(ranked):
        stats["train/auroc"] = ranked
    return stats


def _stops(rule: StopRule | None, turn: ScoredTurn) -> bool:
    """Whether a turn would end its trajectory, were it the first of two."""
    answer = None if turn.has_answer else 0
    signals = StopSignals(turn.verdict, turn.confidence, turn.truncated, answer)
    return ending(rule, [signals], 2) is not None


def peak_memory(device: torch.device) -> float:
    """Peak memory of this process in GiB: its tensors on a GPU, else all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes there, KiB on Linux


NOTHING_RIGHT = (
    "no answer of the rollout is correct. Likely causes: references in a form in which answers are "
    "not read, a prompt or chat template that the model does not know, problems that are too hard"
)
NOTHING_FINISHED = (
    "every completion of the rollout is cut off. Likely causes: the token that ends the model's "
    "turns is not among its eos_token_id, a prompt or chat template that the model does not know, "
    "a model.sampling.max_completion_tokens that is too low"
)


def nothing_to_learn(stats: Mapping[str, float]) -> str | None:
    """The likely fault if no answer of a rollout is finished, or none is correct."""
    if stats.get("train/truncated") == 1:
        return NOTHING_FINISHED
    return NOTHING_RIGHT if stats.get("train/accuracy") == 0 else None


LOGPROB_DIFF_LIMIT = 0.1
"""Mean difference in nats between trainer and engine above which a warning is given. Rounding to
bf16 explains about 0.03; another policy's weights make several tenths."""


def check_engine_gap(stats: Mapping[str, float], step: int) -> None:
    """Warn if the engine samples from other weights than those that train.

    Only the first update of a rollout can show it: later on the weights differ from those that
    sampled.
    """
    gap = stats["engine/logprob_diff"]
    if "train/reward/mean" not in stats or gap <= LOGPROB_DIFF_LIMIT:
        return
    rank_zero_warn(
        f"engine/logprob_diff is {gap:.3g} nats at optimizer step {step}, above "
        f"{LOGPROB_DIFF_LIMIT}: the engine does not sample from the policy that trains. "
        "Its weights are stale or wrong, or it computes in another precision"
    )


def require_finite_number(what: str, value: float, step: int, problem_ids: Sequence[str]) -> None:
    """Refuse to take optimizer step ``step`` with a loss or gradient that is NaN or infinite."""
    if not math.isfinite(value):
        raise RuntimeError(
            f"the {what} of optimizer step {step} is not finite; stopped before the update. "
            f"Problems: {', '.join(dict.fromkeys(problem_ids))}. Earlier checkpoints are intact"
        )
