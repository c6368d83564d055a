"""Calibration rewards for TRL's own rollouts: one answer per prompt, with a self-check.

::

    trainer = GRPOTrainer(
        model=...,
        args=GRPOConfig(reward_weights=[1.0, 0.5], ...),
        train_dataset=dataset(problems),
        reward_funcs=[correct, brier],
    )

A self-check that is not in form earns 0. examples/train_with_trl.py refines over several turns.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from datasets import Dataset

from svr_lightning.core.metrics import VERDICT_CODES
from svr_lightning.core.rewards import ScoringRule, confidence_score
from svr_lightning.core.types import Problem, RemoteCompletion, ScoredTurn
from svr_lightning.recipes.dialogues import SelfVerifying, turn_of
from svr_lightning.tasks.grading import score_turns

DIALOGUE = SelfVerifying()


def dataset(problems: Sequence[Problem]) -> Dataset:
    """TRL's ``train_dataset``: SVR's first prompts, with what the rewards read of a problem."""
    rows = [{"prompt": DIALOGUE.first(p), "problem": json.dumps(asdict(p))} for p in problems]
    return Dataset.from_list(rows)


def correct(completions: list[Any], problem: list[str], **_: Any) -> list[float]:
    """1 for a correct answer, else 0."""
    return [float(turn.correct) for turn in _turns(completions, problem)]


def brier(completions: list[Any], problem: list[str], **_: Any) -> list[float]:
    """1 - (c - y)^2 of the stated confidence c."""
    return [_score(turn, "brier") for turn in _turns(completions, problem)]


def log_score(completions: list[Any], problem: list[str], **_: Any) -> list[float]:
    """The bounded logarithmic score of the stated confidence, in [0, 1]."""
    return [_score(turn, "log") for turn in _turns(completions, problem)]


def verdict(completions: list[Any], problem: list[str], **_: Any) -> list[float]:
    """1 for a verdict that is right about the answer, -1 for a wrong one, 0 for UNSURE."""
    return [_judgement(turn) for turn in _turns(completions, problem)]


def _score(turn: ScoredTurn, rule: ScoringRule) -> float:
    if turn.self_check_format < 1 or turn.confidence is None:
        return 0.0
    return confidence_score(turn.confidence, turn.correct, rule)


def _judgement(turn: ScoredTurn) -> float:
    claim = -1 if turn.verdict is None else VERDICT_CODES[turn.verdict]
    if turn.self_check_format < 1 or claim < 0:
        return 0.0
    return 1.0 if claim == turn.correct else -1.0


def _turns(completions: list[Any], problems: list[str]) -> Iterator[ScoredTurn]:
    """Graded completions, which are texts or chat messages."""
    for completion, row in zip(completions, problems, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        problem = Problem(**json.loads(row))
        turn = turn_of(DIALOGUE, problem, 1, RemoteCompletion(text=text))
        yield from score_turns(problem, [turn], DIALOGUE.formats)
