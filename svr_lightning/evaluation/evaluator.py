"""Runs a policy on problems, keeps a journal, and writes the records and their results."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from svr_lightning.analysis.records import SampleRecord, TurnRecord
from svr_lightning.analysis.results import Journal, package_versions, write_results, write_samples
from svr_lightning.core.parsing import self_check_format_score
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Decoding, Problem, Trajectory, Turn
from svr_lightning.display import Progress, join_first
from svr_lightning.engines.base import Engine, Refusal
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.errors import require
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import AnswerNumbers
from svr_lightning.tasks.grading import get_grader, label

OnTurn = Callable[[Problem, Turn], None]


@dataclass(eq=False)
class Evaluator:
    """One evaluation by adaptive inference, from problems to files.

    It is :meth:`solve` for each data set, then :meth:`finish`. Started again after an interruption,
    it does not repeat finished problems, whose records are journaled.
    """

    actor: Any
    """A :class:`~svr_lightning.policy.policy.Policy` whose engine has started, or a
    :class:`~svr_lightning.policy.policy.RemotePolicy`."""
    config: EvaluationConfig
    """How the policy is run. Without a stopping rule it is the paper's."""
    _: KW_ONLY
    recipe: Recipe | None = None
    """Whose policy it is, by default SVR's: its prompts, and whether the stopping rule applies."""
    folder: Path = Path("runs/default/eval")
    """Where its files go."""
    seed: int = 42
    """Seed of every random draw."""
    step: int = 0
    """The optimizer step of the weights, which also seeds the draws."""
    fingerprint: str | None = None
    """The same if and only if the records would be the same; None keeps no journal."""
    every_turn: bool = False
    """Also record the turns after a stop, up to T_max, for replays of other rules. Results do not
    count them."""
    gather: Callable[[Sequence[Any]], list[Any]] = list
    """Collects the values of all processes; by default there is only one."""
    rank: int = 0
    """Number of this process. The first writes files."""
    quiet: bool = False
    """Show no progress."""

    def __post_init__(self) -> None:
        rule = self.config.full_rule
        self.engine: Engine = self.actor.engine
        self.renderer: Renderer | None = self.actor.renderer
        require(
            self.engine.reads_tokens
            or (isinstance(self.engine, OpenAIEngine) and self.engine.model.logprobs)
            or not rule.needs_tokens,
            f"model.evaluation.stop={rule}: this server's completions come without "
            "log-probabilities; set model.engine.logprobs, or use a rule that needs none",
        )
        require(
            self.engine.reads_tokens or not self.config.greedy_check,
            f"model.evaluation.greedy_check: {type(self.engine).__name__} cannot continue a "
            "completion; use TransformersEngine or VLLMEngine",
        )
        get_grader(self.config.grader).prepare()
        protocol = self.config.resolve(self.recipe or SVR())
        self.dialogue = protocol.dialogue
        self.max_turns = protocol.max_turns
        self.rule = protocol.applied_rule
        self.records: list[SampleRecord] = []
        self._journal: Journal | None = None
        if self.fingerprint is not None:
            path = self.folder / f".journal-{self.rank}.jsonl"
            self._journal = Journal(path, self.fingerprint)
            if done := len(self._journal.entries):
                rank_zero_info(
                    f"continuing after {done} problems of an earlier start; remove {path} to start "
                    "over"
                )

    def finish(self, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gather the records of all processes and write the files; results quote ``config``.

        Returns:
            The results, on every process; empty if a problem has no reference.
        """
        samples = self.gather(self.records)
        results = []
        if self.rank == 0 and samples:
            warn_of_faults(samples)
            if all(record.problem.has_reference for record in samples):
                versions = package_versions()
                results.append(write_results(self.folder, samples, config or {}, versions))
            else:
                write_samples(self.folder, samples)
            if self.dialogue.applied_rule(Confident()) is not None:
                warn_of_missing_self_checks(samples)
        results = self.gather(results)  # so journals are removed after the files are written
        if self._journal is not None:
            self._journal.discard()
        return results[0] if results else {}

    def solve(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[SampleRecord]:
        """Adaptive inference: trajectories that end by the stopping rule.

        ``problems`` are of one data set, whose completion limit is ``max_completion_tokens``, or
        else the task's. ``on_turn`` is called with each turn as it ends.

        Returns:
            One record per problem, in order. A problem that does not fit the prompt budget, or
            that a server refuses to continue, has no turns and an ``error``; it counts as wrong.
        """
        if not problems:
            return []
        done = {} if self._journal is None else self._journal.entries
        records = {p.id: done[dataset, p.id] for p in problems if (dataset, p.id) in done}
        fitting = []
        for problem in problems:
            if problem.id in records:
                continue
            if self.renderer is None or self.renderer.fits(self.dialogue.first(problem)):
                fitting.append(problem)
            else:
                reason = f"the problem does not fit {self.renderer.max_prompt_tokens} prompt tokens"
                records[problem.id] = self._kept(error_record(problem, dataset, reason))
        progress = Progress(
            dataset,
            len(problems),
            turns=self.max_turns,
            done=len(problems) - len(fitting),
            quiet=self.quiet or on_turn is not None,
        )
        decoding = self.config.decoding(problems[0].task, max_completion_tokens)
        driver = Driver(
            self.engine,
            self.renderer,
            decoding,
            SeedContext(run_seed=self.seed, step=self.step),
            progress=progress,
            greedy_check=self.config.greedy_check,
        )
        jobs = (self._job(problem, decoding, on_turn) for problem in fitting)
        with self.actor.sampling(self.step):
            for index, result in driver.stream(jobs):
                problem = fitting[index]
                if isinstance(result, Refusal):
                    record = error_record(problem, dataset, result.reason)
                else:
                    record = trajectory_record(
                        result, dataset, self.config.grader, self.dialogue.answers
                    )
                records[problem.id] = self._kept(record)
        ordered = [records[problem.id] for problem in problems]
        self.records += ordered
        return ordered

    def _job(self, problem: Problem, decoding: Decoding, on_turn: OnTurn | None) -> Job:
        rollout = chain(
            self.dialogue,
            problem,
            0,
            self.max_turns,
            self.rule,
            partial(on_turn, problem) if on_turn else None,
            None if decoding.restricted else self.actor.scores_of,
            every_turn=self.every_turn,
        )
        return Job(problem, 0, rollout)

    def _kept(self, record: SampleRecord) -> SampleRecord:
        if self._journal is not None:
            self._journal.append(record)
        return record


# --- records ------------------------------------------------------------------------------------


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    grader: str = "paper",
    answers: Callable[[int], bool] = bool,
) -> SampleRecord:
    """Grade the turns of an ended chain and make its record.

    Without a reference ``correct`` is null. A turn that cannot be graded counts as wrong and says
    why in ``grading_error``. ``answers`` says which turns (from 1) answer the problem.
    """
    problem, end = trajectory.problem, trajectory.ending
    assert end is not None, "nodes of trees are not evaluated"
    numbers = AnswerNumbers(get_task(problem.task).answer_form)
    return SampleRecord(
        **_problem_fields(problem, dataset),
        returned_turn=end.returned,
        observed_turns=None if end.observed == end.returned else end.observed,
        stopped_early=end.stopped_early,
        accepted=end.accepted,
        turns=tuple(
            _turn_record(problem, turn, numbers, grader, feedback=not answers(turn.index))
            for turn in trajectory.turns
        ),
    )


def _turn_record(
    problem: Problem, turn: Turn, numbers: AnswerNumbers, grader: str, *, feedback: bool
) -> TurnRecord:
    completion = turn.completion
    answer = None if feedback else turn.answer
    y = None
    if problem.has_reference and not feedback:
        part = turn.reading.final_part(completion.text)
        y = label(get_task(problem.task), part, problem, get_grader(grader))
    return TurnRecord(
        turn=turn.index,
        text=completion.text,
        correct=None if y is None else y.correct,
        grading_error=None if y is None else y.error,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        finish_reason=completion.finish_reason.value,
        answer_group=numbers.number(answer),
        feedback=feedback or None,
        **{**turn.signals._asdict(), "answer": answer},
    )


def error_record(problem: Problem, dataset: str, error: str) -> SampleRecord:
    """The record of a problem that could not be run."""
    return SampleRecord(
        **_problem_fields(problem, dataset),
        returned_turn=0,
        stopped_early=False,
        accepted=False,
        turns=(),
        error=error,
    )


def _problem_fields(problem: Problem, dataset: str) -> dict[str, Any]:
    return {"dataset": dataset, **{f.name: getattr(problem, f.name) for f in fields(Problem)}}


def warn_of_faults(records: Sequence[SampleRecord]) -> None:
    """Warn, in one line, of problems that count as wrong since they could not be run or graded."""
    errors = {"/".join(record.key): record.error for record in records if record.error is not None}
    not_run = f"could not be run ({next(iter(errors.values()), '')})"
    ungraded = ["/".join(r.key) for r in records if any(turn.grading_error for turn in r.turns)]
    parts = [
        f"{what}: {join_first(names)}"
        for what, names in ((not_run, list(errors)), ("could not be graded", ungraded))
        if names
    ]
    if parts:
        warnings.warn(
            f"counted as wrong of {len(records)} problems: {'; '.join(parts)}", stacklevel=3
        )


def warn_of_missing_self_checks(records: Sequence[SampleRecord]) -> None:
    """Warn if no turn has a self-check: the policy was probably not trained to write one."""
    texts = [turn.text for record in records for turn in record.turns]
    if texts and not any(self_check_format_score(text) >= 0 for text in texts):
        warnings.warn(
            f"0 of {len(texts)} turns state a self-check; was this policy trained for SVR?",
            stacklevel=3,
        )
