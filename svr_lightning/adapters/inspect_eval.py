"""SVR in Inspect: a solver, and a scorer with calibration metrics.

::

    inspect eval svr_lightning/svr -T task=gsm8k -T path=openai/gsm8k -T subset=main \
        -T split=test --model openai-api/mine/policy

The solver stores a :class:`~svr_lightning.analysis.records.SampleRecord`, the line of a
``samples.jsonl``, which the scorer hands to this package's own metrics.
"""

from dataclasses import asdict
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ContentText,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import CORRECT, INCORRECT, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from svr_lightning.analysis.metrics import defined_values
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.control.controller import Controller
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Message, Problem, RemoteCompletion, Trajectory
from svr_lightning.engines.chat_answers import read_completion
from svr_lightning.errors import require
from svr_lightning.evaluation.adaptive import error_record, trajectory_record
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import DataSource, load_problems

RECORD = "svr"
"""Where the record of a sample lies: in its store, and in the metadata of its score."""
PROBLEM = "svr_problem"
"""Where the problem lies in the metadata of a sample of :func:`svr`."""
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
    """Problems of a data set, solved as :func:`svr_solver` does.

    ``task`` reads rows and grades answers; the data set is named as in a configuration of this
    package.
    """
    source = DataSource(name=task, task=task, path=path, split=split, subset=subset, limit=limit)
    samples = [
        Sample(id=one.id, input=one.question, metadata={PROBLEM: asdict(one)})
        for one in load_problems(source)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=task),
        solver=svr_solver(task, max_turns=max_turns, threshold=threshold),
        scorer=svr_scorer(),
    )


@solver
def svr_solver(task: str, max_turns: int = 10, threshold: float = Confident.threshold) -> Solver:
    """Refine until the paper's stopping rule ends the trajectory.

    Samples are those of :func:`svr`, or of any data set whose input is the question alone and whose
    target is the reference.

    Args:
        task: reads and grades answers, and writes the prompts.
        max_turns: T_max.
        threshold: the confidence that a turn needs to be the last.
    """
    name = get_task(task).name

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        problem = _problem(state, name)
        # It stays if one of Inspect's own limits ends the sample, which is then scored as wrong.
        ended = error_record(problem, name, "ended by a limit of Inspect")
        state.store.set(RECORD, ended.to_json())

        async def ask(messages: list[Message], max_tokens: int) -> RemoteCompletion:
            chat = [ROLES[message["role"]](content=message["content"]) for message in messages]
            model = get_model()  # --max-tokens of Inspect may only lower the task's limit
            most = min(max_tokens, model.config.max_tokens or max_tokens)
            state.output = await model.generate(chat, config=GenerateConfig(max_tokens=most))
            state.messages = [*chat, state.output.message]
            return completion_of(state.output)

        controller = Controller(ask, name, rule=Confident(threshold=threshold), max_turns=max_turns)
        result = await controller.solve_async(problem.question)
        record = error_record(problem, name, result.reason)  # the model refused
        if result.turns:
            trajectory = Trajectory(
                problem=problem, sample=0, turns=result.turns, ending=result.ending
            )
            record = trajectory_record(trajectory, name)
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
    """Whether the returned answer is correct, behind :func:`svr_solver`.

    What could not be run is wrong.
    """

    async def score(state: TaskState, target: Target) -> Score:
        kept = state.store.get(RECORD)
        require(kept is not None, "svr_scorer needs svr_solver as the solver")
        record = SampleRecord.from_json(kept)
        turn = record.turns[record.returned_turn - 1] if record.error is None else None
        return Score(
            value=CORRECT if turn and turn.correct else INCORRECT,
            answer=turn and turn.answer,
            explanation=f"turn {turn.turn} of {len(record.turns)}" if turn else str(record.error),
            metadata={RECORD: kept},
        )

    return score


def _problem(state: TaskState, task: str) -> Problem:
    """The problem of a sample; its metadata have it if :func:`svr` made the sample."""
    if PROBLEM in state.metadata:
        return Problem(**state.metadata[PROBLEM])
    text, reference = state.input_text, state.target.text
    return Problem(id=str(state.sample_id), task=task, question=text, reference=reference)
