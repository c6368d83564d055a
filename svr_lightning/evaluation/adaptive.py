"""Adaptive inference over a data set, recorded turn by turn in the samples-file schema."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from svr_lightning.core.stopping import StopRule, answer_turn
from svr_lightning.core.types import AnyCompletion, Problem, SelfCheck, Trajectory, Turn, Verdict
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.chain import signals_of
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding, Job, RequestError, RolloutDriver
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from svr_lightning.tasks.graders import get_grader
from svr_lightning.tasks.grading import label

Record = dict[str, Any]
"""One line of a samples file."""

OnTurn = Callable[[Problem, Turn], None]
OnRecord = Callable[[Record], None]

_SVR = SVR()
_SILENT = SelfCheck(verdict=Verdict.UNSURE, confidence=0.5)
"""What a record says of a turn without a self-check."""


class Records:
    """The records of some problems of one data set, told of as they come.

    Args:
        problems: one record each, in this order.
        done: records by problem id that are there already.
        on_record: told of each other one.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        done: Mapping[str, Record] | None,
        on_record: OnRecord | None,
    ) -> None:
        self._problems = problems
        self._by_id = {p.id: done[p.id] for p in problems if p.id in done} if done else {}
        self._on_record = on_record

    def missing(self) -> list[Problem]:
        """The problems without a record."""
        return [problem for problem in self._problems if problem.id not in self._by_id]

    def add(self, record: Record) -> None:
        """A problem is finished."""
        self._by_id[record["id"]] = record
        if self._on_record is not None:
            self._on_record(record)

    def in_order(self) -> list[Record]:
        """Every problem's record."""
        return [self._by_id[problem.id] for problem in self._problems]


def run_adaptive(
    problems: Sequence[Problem],
    *,
    dataset: str,
    driver: RolloutDriver,
    renderer: Renderer,
    decoding: Decoding,
    max_turns: int,
    rule: StopRule | None,
    recipe: Recipe = _SVR,
    grader: str = "paper",
    on_turn: OnTurn | None = None,
    done: Mapping[str, Record] | None = None,
    on_record: OnRecord | None = None,
) -> list[Record]:
    """Solve problems with adaptive stopping, the batch kept full as they stop.

    Args:
        problems: of one data set.
        dataset: its name in the records.
        driver: runs the trajectories.
        renderer: says which problems fit.
        decoding: how completions are drawn.
        max_turns: T_max.
        rule: ends a trajectory; None runs every turn and returns the last.
        recipe: whose policy it is; says which prompts follow each other, and what of ``max_turns``
            and ``rule`` applies.
        grader: name of the notion of correctness.
        on_turn: told of each turn as it ends.
        done: records by problem id that are taken as they are instead of being run.
        on_record: told of each new record, as soon as its problem is finished.

    Returns:
        One record per problem, in order. A problem that does not fit the prompt budget, or that
        a server refuses to go on with, has no turns and an ``error``; it counts as wrong.
    """
    max_turns, rule = recipe.protocol(max_turns, rule)
    records = Records(problems, done, on_record)
    fitting = []
    for problem in records.missing():
        if renderer.fits(recipe.first_messages(problem)):
            fitting.append(problem)
        else:
            records.add(error_record(problem, dataset, unfit_error(renderer)))
    jobs = (
        Job(
            problem=problem,
            sample=0,
            program=recipe.inference(
                problem,
                0,
                max_turns,
                rule,
                partial(on_turn, problem) if on_turn else None,
                # A server's completions have a rendering of their own.
                renderer.verdict_probability,  # type: ignore[arg-type]
            ),
            decoding=decoding,
        )
        for problem in fitting
    )
    for index, result in driver.stream(jobs):
        if isinstance(result, RequestError):
            records.add(error_record(fitting[index], dataset, result.reason))
        else:
            records.add(trajectory_record(result, dataset, max_turns, rule, grader))
    return records.in_order()


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    max_turns: int,
    rule: StopRule | None,
    grader: str = "paper",
) -> Record:
    """Grade a trajectory's turns and write it down. Without a reference ``correct`` is null.

    Args:
        trajectory: as it ended under ``rule``.
        dataset: its name in the record.
        max_turns: T_max.
        rule: what ended it; None where nothing could.
        grader: name of the notion of correctness.
    """
    problem = trajectory.problem
    task = get_task(problem.task)
    last = trajectory.turns[-1].index
    returned = last
    if rule is not None:
        returned = answer_turn(rule, [signals_of(task, turn) for turn in trajectory.turns])
    return {
        **head(problem, dataset),
        "returned_turn": returned,
        "stopped_early": rule is not None and last < max_turns,
        **({"observed_turns": last} if last != returned else {}),
        "turns": [_turn_record(problem, turn, grader) for turn in trajectory.turns],
    }


def completion_fields(problem: Problem, completion: AnyCompletion, grader: str) -> Record:
    """What a completion says and whether it is right.

    A completion that cannot be graded counts as wrong and says why in ``grading_error``.
    """
    task = get_task(problem.task)
    fields: Record = {
        "text": completion.text,
        "answer": task.extract_answer(completion.text),
        "correct": None,
        "truncated": completion.truncated,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "finish_reason": completion.finish_reason.value,
    }
    if problem.has_reference:
        fields |= label(task, completion.text, problem, get_grader(grader)).fields()
    return fields


def _turn_record(problem: Problem, turn: Turn, grader: str) -> Record:
    fields = completion_fields(problem, turn.completion, grader)
    check = turn.check or _SILENT
    record = {
        "turn": turn.index,
        "text": fields.pop("text"),
        "answer": fields.pop("answer"),
        "correct": fields.pop("correct"),
        "verdict": check.verdict.value,
        "confidence": check.confidence,
        **fields,
    }
    if turn.verdict_probability is not None:
        record["verdict_probability"] = turn.verdict_probability
    return record


def error_record(problem: Problem, dataset: str, error: str) -> Record:
    """The record of a problem that could not be run."""
    return {
        **head(problem, dataset),
        "returned_turn": 0,
        "stopped_early": False,
        "turns": [],
        "error": error,
    }


def unfit_error(renderer: Renderer) -> str:
    """Why a problem was not run."""
    return f"the problem does not fit {renderer.max_prompt_tokens} prompt tokens"


def head(problem: Problem, dataset: str) -> Record:
    """What every line of an evaluation begins with."""
    return {
        "dataset": dataset,
        "id": problem.id,
        "question": problem.question,
        "reference": problem.reference,
    }
