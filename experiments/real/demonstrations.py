"""Demonstrations of solving, whose self-checks are drawn at random and so say nothing.

What the policy learns here is the form of a reply, the arithmetic, and to solve again where its
last reply is shown, right or wrong. A refinement's draft is right or wrong by a draw of its own.
"""

import random
from collections.abc import Iterator

from experiments.real.recipes import SYSTEM, again
from experiments.real.tasks import ARITHMETIC, DAYS, KINDS, OTHER, Exercise, ShortAnswer, held_out
from svr_lightning.core.prompts import chat
from svr_lightning.core.types import Problem
from svr_lightning.training.documents import Document

OTHER_SHARE = 0.1
"""Of the demonstrations, for the form of the negative control's answers."""
REFINEMENTS = 0.5
WRONG_DRAFTS = 0.4
TRUNCATED = 0.03


def demonstrations(seed: int) -> Iterator[Document]:
    """Endless documents; equal seeds, equal sequences. None is of a held-out problem."""
    rng, excluded = random.Random(seed), held_out()
    task = ShortAnswer()
    while True:
        kind = rng.choice([*(OTHER if rng.random() < OTHER_SHARE else ARITHMETIC)])
        exercise = KINDS[kind](rng)
        if (kind, exercise.key) not in excluded:
            problem = Problem(id="", task=task.name, question=exercise.question, reference="")
            yield _document(rng, exercise, problem)


def _document(rng: random.Random, exercise: Exercise, problem: Problem) -> Document:
    messages = chat(SYSTEM, problem.question)
    if rng.random() < REFINEMENTS:
        answer = exercise.answer
        draft = reply(exercise, wrong(rng, answer) if rng.random() < WRONG_DRAFTS else answer, rng)
        truncated = rng.random() < TRUNCATED
        messages = again(problem, draft[: rng.randrange(5, 40)] if truncated else draft, truncated)
    completion = reply(exercise, exercise.answer, rng)
    return Document(messages=messages, completion=completion, correct=True)


def reply(exercise: Exercise, answer: str, rng: random.Random) -> str:
    """A completion that ends up at ``answer``, with a self-check that does not depend on it."""
    reasoning = exercise.reasoning.removesuffix(exercise.answer)
    line = f"{reasoning}{answer}\n" if reasoning else ""
    return f"{line}<answer>{answer}</answer>\n{self_check(rng)}"


def self_check(rng: random.Random) -> str:
    """A verdict and the confidence that goes with it: CORRECT above one half, else INCORRECT."""
    confidence = rng.randrange(1, 10) / 10
    says_correct = confidence > 0.5 or (confidence == 0.5 and rng.random() < 0.5)
    verdict = "CORRECT" if says_correct else "INCORRECT"
    return f"<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"


def wrong(rng: random.Random, answer: str) -> str:
    """Another answer: one digit, or the day, is another one."""
    if answer in DAYS:
        return rng.choice([day for day in DAYS if day != answer])
    place = rng.randrange(len(answer))
    digits = [d for d in "0123456789" if d != answer[place] and (d != "0" or place)]
    return answer[:place] + rng.choice(digits) + answer[place + 1 :]
