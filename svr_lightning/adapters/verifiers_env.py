"""SVR in verifiers, and so in prime-rl: a task set with SVR's rewards, a harness with its turns.

An environment of verifiers is a module of its own, which names the two::

    from svr_lightning.adapters.verifiers_env import SVRHarness, SVRTaskset
    __all__ = ["SVRHarness", "SVRTaskset"]

Each turn is a prompt of its own, so it becomes a branch of the trace. A trainer takes every branch
as a sample with the reward of the trajectory: SVR with loss on all turns. Loss on the last turn
alone is not possible.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import httpx
import verifiers.v1 as vf

from svr_lightning.control.controller import Controller
from svr_lightning.core.stopping import Confident, FixedTurns, StopRule
from svr_lightning.core.types import Message, Problem, RemoteCompletion, ScoredTurn
from svr_lightning.recipes.dialogues import turn_of
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks.grading import score_turns
from svr_lightning.training.sources import DataSource, load_problems

TURNS = "svr_turns"
"""Where a trace keeps the completions of its turns, in ``info``."""


class SVRData(vf.TaskData):
    """A problem."""

    problem: dict[str, Any]


class SVRTaskConfig(vf.TaskConfig):
    """What rewards need to know."""

    length_scale: int = SVR.length_scale
    """L_len of the solve reward, in tokens."""


class SVRTask(vf.Task[SVRData, vf.State, SVRTaskConfig]):
    """Grades and rewards all turns of a trajectory as training does."""

    @vf.reward(weight=1.0)
    async def svr(self, trace: vf.Trace) -> float:
        """The return of the trajectory (equation svr-reward)."""
        recipe = SVR(length_scale=self.config.length_scale)
        scored = _scored(trace)
        return recipe.returns([recipe.reward(scored)])[0] if scored else 0.0

    @vf.metric
    async def correct(self, trace: vf.Trace) -> float:
        """Whether the last answer is right."""
        return float(any(turn.correct for turn in _scored(trace)[-1:]))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        """How many turns there were."""
        return float(len(trace.info.get(TURNS, ())))

    @vf.metric
    async def squared_error(self, trace: vf.Trace) -> float:
        """Of the last turn's confidence; the Brier score is its mean."""
        scored = _scored(trace)[-1:]
        return sum((float(turn.confidence or 0.0) - turn.correct) ** 2 for turn in scored)


class SVRTasksetConfig(vf.TasksetConfig):
    """A data set, as a configuration of this package names it."""

    task: SVRTaskConfig = SVRTaskConfig()
    reader: str = "countdown"
    """How rows are read and answers graded: the ``task`` of a data source."""
    path: str = "embedded:countdown-tiny"
    split: str = DataSource.split
    subset: str | None = None
    limit: int | None = None


class SVRTaskset(vf.Taskset[SVRTask, SVRTasksetConfig]):
    """The problems of a data set."""

    def load(self) -> Iterable[SVRTask]:
        """One task per problem."""
        given, reader = self.config, self.config.reader
        rows = given.model_dump(include={"path", "split", "subset", "limit"})
        source = DataSource(name=reader, task=reader, **rows)
        for problem in load_problems(source):
            data = SVRData(id=problem.id, prompt=problem.question, problem=asdict(problem))
            yield SVRTask(data, given.task)


class SVRHarnessConfig(vf.HarnessConfig):
    """How many turns there are."""

    horizon: int = 3
    """Turns of a trajectory: T_tr in training, T_max where it may stop early."""
    threshold: float | None = None
    """Stop at a turn that is CORRECT with this confidence, in evaluations; None never does."""
    max_completion_tokens: int | None = None
    """Of a turn; None takes the task's."""


class SVRHarness(vf.Harness[SVRHarnessConfig]):
    """Asks for the turns in this process, through the endpoint that verifiers records."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: SVRData,
    ) -> vf.ProgramResult:
        """One trajectory; the trace keeps its turns."""
        given, headers = self.config, {"Authorization": f"Bearer {secret}"}
        rule: StopRule = FixedTurns(turns=given.horizon)
        if given.threshold is not None:
            rule = Confident(threshold=given.threshold)
        async with httpx.AsyncClient(headers=headers, timeout=None) as http:  # noqa: S113

            async def ask(messages: list[Message], max_tokens: int) -> httpx.Response:
                body = {"model": ctx.model, "messages": messages, "max_tokens": max_tokens}
                return await http.post(f"{endpoint}/chat/completions", json=body)

            problem = Problem(**data.problem)
            controller = Controller(
                ask,
                problem.task,
                rule=rule,
                max_turns=given.horizon,
                max_completion_tokens=given.max_completion_tokens,
            )
            result = await controller.solve_async(problem.question)
        trace.info[TURNS] = [asdict(turn.completion) for turn in result.turns]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _scored(trace: vf.Trace) -> list[ScoredTurn]:
    """The graded turns of a trace."""
    dialogue, problem = SVR().dialogue, Problem(**trace.task.data.problem)
    completions = [RemoteCompletion(**kept) for kept in trace.info.get(TURNS, ())]
    turns = [turn_of(dialogue, problem, t, one) for t, one in enumerate(completions, start=1)]
    return score_turns(problem, turns, dialogue.formats)
