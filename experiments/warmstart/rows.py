"""Demonstrations of the format from a user's own rows: questions with their reference answers.

Right and corrupted answers, each with an honest self-check, in first turns and in refinements. A
corrupted answer is one that the task grades as wrong: a digit is another one, or it is the answer
of another row. The reasoning is the row's solution, whose last mention of the answer is
corrupted as well; without a solution there is none.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.warmstart.attempts import Attempt, Demonstrations
from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.row_files import file_rows
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import DataSource, load_problems

RIGHT_FIRST, RIGHT_DRAFT, RIGHT_AGAIN = 0.6, 0.4, 0.85
"""Probability of a right answer: in a first turn, in a draft that is refined, in its refinement."""
HONEST = {True: 0.98, False: 0.02}
"""Probability of the verdict CORRECT on right and on wrong answers."""
KEEP_DOUBTED = {True: 0.2, False: 0.0}
"""Probability that a refinement keeps an answer that it doubts."""
_TRIES = 50


def demonstrations(path: Path, task: str) -> Demonstrations:
    """Endless demonstrations of SVR's prompts on the rows of a file.

    Raises:
        ConfigError: if a row cannot be used, or an answer of the task is not its reference.
    """
    problems = load_problems(DataSource(name="rows", task=task, path=str(path)))
    if "YOUR_ANSWER" not in get_task(task).style.request:
        raise ConfigError(f"--task {task}: its answers are not the references of its rows")
    rows = zip(problems, file_rows(path), strict=True)
    solver = RowSolver(problems, {problem.id: _solution(row) for problem, (_, row) in rows})
    return Demonstrations(solver=solver, kinds=("svr",), trust=HONEST, keep_doubted=KEEP_DOUBTED)


def _solution(row: Mapping[str, object]) -> str:
    """The worked solution: a column of that name, else what stands before GSM8K's ``####``."""
    before = str(row.get("answer", "")).rpartition("####")[0]
    return str(row.get("solution") or before).strip()


@dataclass(frozen=True)
class RowSolver:
    """Answers with references and with corrupted ones."""

    problems: Sequence[Problem]
    solutions: Mapping[str, str]
    """By a problem's id."""

    def problem(self, rng: random.Random) -> Problem:
        """Any row's."""
        return rng.choice(self.problems)

    def attempt(self, rng: random.Random, problem: Problem, *, draft: bool = False) -> Attempt:
        """A right answer, or a corrupted one."""
        return self._attempt(rng, problem, RIGHT_DRAFT if draft else RIGHT_FIRST)

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """A right answer more often."""
        return self._attempt(rng, problem, RIGHT_AGAIN)

    def _attempt(self, rng: random.Random, problem: Problem, chance: float) -> Attempt:
        right = rng.random() < chance
        reference = str(problem.reference)
        answer = reference if right else self._corrupted(rng, problem, reference)
        written = get_task(problem.task).style.request.replace("YOUR_ANSWER", answer)
        inside = written.removeprefix("<answer>").removesuffix("</answer>")
        reasoning = answer.join(self.solutions[problem.id].rsplit(reference, 1))
        return Attempt(reasoning=reasoning, answer=inside, plan="", correct=right)

    def _corrupted(self, rng: random.Random, problem: Problem, reference: str) -> str:
        task = get_task(problem.task)
        places = [k for k, character in enumerate(reference) if character.isdecimal()]
        for _ in range(_TRIES):
            if places:
                k, digit = rng.choice(places), str(rng.randrange(10))
                answer = reference[:k] + digit + reference[k + 1 :]
            else:
                answer = str(rng.choice(self.problems).reference)
            if not task.grade(task.style.request.replace("YOUR_ANSWER", answer), problem):
                return answer
        raise ConfigError(f"row {problem.id}: no wrong answer is found for {reference!r}")
