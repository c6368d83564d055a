"""SVR in Inspect: a solver, and a scorer with calibration metrics.

::

    inspect eval svr_lightning/svr -T task=gsm8k -T path=openai/gsm8k -T subset=main \
        -T split=test --model openai-api/mine/policy

The solver stores a :class:`~svr_lightning.analysis.records.SampleRecord`, the line of a
``samples.jsonl``, which the scorer hands to this package's own metrics.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageSystem,
    ChatMessageUser,
    ContentText,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    SampleScore,
    Score,
    Scorer,
    Target,
    metric,
    scorer,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver

from svr_lightning.analysis.metrics import defined_values
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.control.controller import Controller
from svr_lightning.core.stopping import Confident, rule_from_config
from svr_lightning.core.types import Message, Problem, RemoteCompletion, Trajectory
from svr_lightning.engines.chat_answers import read_completion
from svr_lightning.errors import require
from svr_lightning.evaluation.adaptive import error_record, trajectory_record
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import DataSource, load_problems

RECORD = "svr"
"""Where the record of a sample lies: in its store, and in the metadata of its score."""
PROBLEM = "svr_problem"
"""Where the problem lies in a sample's metadata."""
ROLES = {"system": ChatMessageSystem, "user": ChatMessageUser}


@task
def svr(
    task: str,
    path: str,
    split: str = DataSource.split,
    subset: str | None = None,
    limit: int | None = None,
    max_turns: int = 10,
    threshold: float = Confident.threshold,
) -> Task:
    """Problems of a data set, solved by refinement until the stopping rule ends it.

    Args:
        task: how rows are read and answers graded: ``gsm8k``, ``math``, ``countdown`` or a class
            path.
        path: of the data set, as in a configuration of this package; so are the next three.
        split: of it.
        subset: of it.
        limit: the first so many problems.
        max_turns: T_max.
        threshold: the confidence that a turn needs to be the last.
    """
    source = DataSource(name=task, task=task, path=path, split=split, subset=subset, limit=limit)
    samples = [sample_of(problem) for problem in load_problems(source)]
    return Task(
        dataset=MemoryDataset(samples, name=task),
        solver=svr_solver(task, max_turns=max_turns, threshold=threshold),
        scorer=svr_scorer(),
    )


def sample_of(problem: Problem) -> Sample:
    """A problem as an Inspect sample, which keeps all of it."""
    return Sample(
        id=problem.id,
        input=problem.question,
        target=_text(problem.reference),
        metadata={PROBLEM: asdict(problem)},
    )


@solver
def svr_solver(
    task: str,
    max_turns: int = 10,
    threshold: float = Confident.threshold,
    stop: Mapping[str, Any] | None = None,
) -> Solver:
    """Refine until a stopping rule ends the trajectory.

    Samples are those of :func:`sample_of`, or of any data set whose input is the question alone and
    whose target is the reference.

    Args:
        task: reads and grades answers, and writes the prompts.
        max_turns: T_max.
        threshold: gamma of the paper's rule.
        stop: another rule, as in a configuration: ``{"class_path": ..., "init_args": {...}}``.
    """
    name = get_task(task).name
    rule = rule_from_config({"stop": stop}) if stop else Confident(threshold=threshold)
    require(not rule.needs_tokens, f"stop={rule}: Inspect's answers have no log-probabilities")

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        problem = _problem(state, name)
        # It stays if one of Inspect's own limits ends the sample, which is then scored as wrong.
        ended = error_record(problem, name, "ended by a limit of Inspect")
        state.store.set(RECORD, ended.to_json())
        outputs: list[ModelOutput] = []
        transcript: list[ChatMessage] = []

        async def ask(messages: list[Message], max_tokens: int) -> RemoteCompletion:
            chat = [ROLES[message["role"]](content=message["content"]) for message in messages]
            model = get_model()  # --max-tokens of Inspect may only lower the task's limit
            most = min(max_tokens, model.config.max_tokens or max_tokens)
            config = GenerateConfig(max_tokens=most)
            outputs.append(await model.generate(chat, config=config))
            transcript.extend(
                [*chat[bool(transcript) :], outputs[-1].message]
            )  # one system message
            return completion_of(outputs[-1])

        controller = Controller(ask, name, rule=rule, max_turns=max_turns)
        result = await controller.solve_async(problem.question)
        turns, end = result.turns, result.ending
        if not turns:  # the model refused
            state.messages, state.output = transcript, outputs[-1]
            state.store.set(RECORD, error_record(problem, name, result.reason).to_json())
            return state
        trajectory = Trajectory(problem=problem, sample=0, turns=turns, ending=end)
        record = trajectory_record(trajectory, name)
        state.messages, state.output = transcript, outputs[record.returned_turn - 1]
        state.store.set(RECORD, record.to_json())
        return state

    return solve


def completion_of(output: ModelOutput) -> RemoteCompletion:
    """An answer as the policy wrote it: Inspect takes the reasoning out of the text.

    White space around reasoning is lost there; one line break is put behind it.
    """
    content, usage = output.message.content, output.usage
    parts = [ContentText(text=content)] if isinstance(content, str) else content
    text = "".join(
        f"<think>{part.reasoning}</think>\n" if part.type == "reasoning" else part.text
        for part in parts
        if part.type in ("reasoning", "text")
    )
    choice = {"message": {"content": text}, "finish_reason": output.stop_reason}
    return read_completion({"choices": [choice], "usage": usage and usage.model_dump()})


@metric
def svr_metrics() -> Any:
    """Every metric of this package, ECE and AURC included, of the samples that were scored."""

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        found = [(score.score.metadata or {}).get(RECORD) for score in scores]
        require(None not in found, "svr_metrics needs the scores of svr_scorer, in one epoch")
        return defined_values([SampleRecord.from_json(record) for record in found])

    return compute


@scorer(metrics=[svr_metrics()])
def svr_scorer() -> Scorer:
    """Whether the returned answer is correct; the record has verdict and confidence of each turn.

    It stands behind :func:`svr_solver`.
    """

    async def score(state: TaskState, target: Target) -> Score:
        record = state.store.get(RECORD)
        require(record is not None, "svr_scorer needs svr_solver as the solver")
        return score_of(SampleRecord.from_json(record))

    return score


def score_of(record: SampleRecord) -> Score:
    """A record as an Inspect score; what could not be run is wrong."""
    turn, explanation = None, str(record.error)
    if record.error is None:
        turn = record.turns[record.returned_turn - 1]
        explanation = f"turn {turn.turn} of {len(record.turns)}"
        if turn.verdict is not None:
            explanation += f": {turn.verdict} at confidence {turn.confidence:g}"
    return Score(
        value=CORRECT if turn and turn.correct else INCORRECT,
        answer=turn and turn.answer,
        explanation=explanation,
        metadata={RECORD: record.to_json()},
    )


def _problem(state: TaskState, task: str) -> Problem:
    """The problem of a sample; its metadata have it if :func:`sample_of` made the sample."""
    kept = state.metadata.get(PROBLEM)
    if kept is not None:
        return Problem(**kept)
    text, reference = state.input_text, state.target.text
    return Problem(id=str(state.sample_id), task=task, question=text, reference=reference)


def _text(reference: Any) -> str:
    return reference if isinstance(reference, str) else json.dumps(reference)
