"""``svr warmstart``: teach any policy the form of SVR's turns, on its own answers.

The policy answers each training problem several times under a plain prompt. Its graded answers
become turns of SVR's form, whose self-checks state half the label and half the problem's pass rate
(:mod:`svr_lightning.training.documents`), and it is trained on them.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import self_check_start
from svr_lightning.core.ranges import Count, Positive, Range, check_fields
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, Message, Problem, Turn
from svr_lightning.engines.acting_weights import is_adapted
from svr_lightning.errors import require
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.files import finite, write_json
from svr_lightning.policy.policy import seconds_now
from svr_lightning.recipes.dialogues import Dialogue, SelfVerifying, chain
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.tasks import Task, get_task
from svr_lightning.tasks.grading import label
from svr_lightning.training.documents import (
    Encoded,
    Target,
    can_be_written,
    checked_turns,
    encode,
)
from svr_lightning.training.export import export_policy
from svr_lightning.training.records import quoted_config, record_fingerprint
from svr_lightning.training.supervised import train

SENTENCES = {
    "gsm8k": "Please reason step by step, and end with a line '#### N', where N is the answer as a "
    "number.",
    "math": r"Please reason step by step, and put your final answer within \boxed{}.",
}
"""What a plain prompt adds to the question. Other tasks: their form of an answer."""
PLAIN = Path("eval") / "plain"
"""Where in a run's folder the plain answers are."""
_QUESTION = "{question}"
FEWEST = 8
"""Right and wrong answers that there have to be: with fewer there is nothing to tell apart."""


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """The options of ``svr warmstart``."""

    samples: Count = 4
    """Plain answers to each training problem."""
    held_out: Count = 100
    """Training problems that are not trained on, and measure what came of it."""
    prompt: str | None = None
    """What the plain prompt adds to the question; or, with ``{question}`` in it, all of the prompt,
    such as worked examples before the question. None asks for the task's form of an answer."""
    target: Target = "mixed"
    """What self-checks state: ``mixed`` is half the label and half the problem's pass rate, in
    steps of 0.05; ``random`` is drawn, so that they say nothing."""
    passes: Positive = 2.0
    """How often each turn is trained on, on average."""
    batch: Count = 8
    """Turns per optimizer step."""
    rate: Positive = 2e-5
    """Peak learning rate."""
    train_layers: Annotated[float, Range("(0, 1]")] = 0.5
    """Share of the layers, from the top, that train; embeddings and output layer train only at 1.
    With ``model.policy.lora`` the adapters train instead."""
    check_weight: Positive = 16.0
    """Weight of the tokens of a self-check in the loss; all others weigh 1."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Plain(Dialogue):
    """The question and a sentence, as a user would ask; no system message, no self-check."""

    sentence: str

    def first(self, problem: Problem) -> list[Message]:
        """One message."""
        form = self.sentence if _QUESTION in self.sentence else f"{_QUESTION} {self.sentence}"
        return [{"role": "user", "content": form.replace(_QUESTION, problem.question).strip()}]

    def later(self, problem: Problem, turns: Sequence[Turn]) -> list[Message]:
        """The same."""
        return self.first(problem)


@dataclass(frozen=True, kw_only=True)
class PlainAnswers(GRPO):
    """Independent answers under a plain prompt."""

    sentence: str = ""

    @property
    def dialogue(self) -> Dialogue:
        """The plain prompt."""
        return Plain(self.sentence)


class WarmStart:
    """One warm start, from problems to a policy folder; :meth:`run` is all of it.

    Started again after an interruption it goes on: finished problems are not sampled again, and
    training continues from its last checkpoint.

    Args:
        module: an :class:`~svr_lightning.training.module.SVRModule`, attached to a trainer, whose
            policy and engine are ready.
        problems: of one data set.
        start: the options.
        root: the run's folder, which gets ``policy/`` and ``warmstart.json``.

    Raises:
        ConfigError: if turns of this recipe or this task cannot be made.
    """

    def __init__(
        self, module: Any, problems: Sequence[Problem], start: WarmStartConfig, root: Path
    ) -> None:
        self.module = module
        self.start = start
        self.root = root
        self.task = get_task(problems[0].task)
        _check(module.recipe.dialogue, self.task, len(problems), start)
        self.training, self.held_out = split(problems, start.held_out, module.seed)
        self.facts: dict[str, Any] = {"options": asdict(start), "problems": len(self.training)}
        self._began = seconds_now()

    def run(self) -> None:
        """Sample, train, measure and export, and say so.

        Raises:
            ConfigError: if there are too few right or wrong answers.
        """
        evaluator, fingerprint = _plain_evaluator(self.module, self.task, self.start, self.root)
        encoded = self._turns(evaluator.solve(self.training, "plain"))
        facts = f"{fingerprint} {self.start} {self.module.evaluation.max_turns}"
        digest = hashlib.sha256(facts.encode()).hexdigest()[:12]
        checkpoint = self.root / f"warmstart-{digest}.ckpt"
        self._train(encoded, checkpoint)
        measured = measure(self.module, self.held_out)
        self.facts |= {"held_out": measured, "minutes_measuring": self._minutes()}
        shown = {k: "undefined" if v is None else f"{v:.3f}" for k, v in measured.items()}
        rank_zero_info(_MEASURED.format(n=len(self.held_out), **shown))
        write_json(self.root / "warmstart.json", self.facts)
        rank_zero_info(f"policy: {export_policy(self.module, self.root)}")
        evaluator.finish(quoted_config(self.module))  # removes the journal, so it comes last
        for left in self.root.glob("warmstart-*.ckpt"):  # of other options, too
            left.unlink()

    def _turns(self, records: Sequence[SampleRecord]) -> list[Encoded]:
        """The turns to train on, from the plain answers."""
        answers = [turn for record in records for turn in record.turns]
        count = max(len(answers), 1)
        facts = {
            "answers": len(answers),
            "solved": sum(bool(turn.correct) for turn in answers) / count,
            "cut_off": sum(turn.truncated for turn in answers) / count,
            "minutes_sampling": self._minutes(),
        }
        rank_zero_info(_SAMPLED.format(problems=len(records), **facts))
        self.facts |= facts
        return encoded_turns(self.module, records, self.start)

    def _train(self, encoded: Sequence[Encoded], checkpoint: Path) -> None:
        module, start = self.module, self.start
        steps = math.ceil(start.passes * len(encoded) / start.batch)
        length = fmean(len(turn.ids) for turn in encoded)
        rank_zero_info(f"{len(encoded)} turns of {length:.0f} tokens, prompts included")
        freeze_lower_layers(module.policy, start.train_layers)
        losses = train(
            module.policy,
            shuffled(encoded, module.seed),
            steps=steps,
            rate=start.rate,
            batch=start.batch,
            micro_batch=module.micro_batch_size,
            checkpoint=checkpoint,
            report=rank_zero_info,
        )
        self.facts |= {
            "turns": len(encoded),
            "steps": steps,
            "loss": losses[-1],
            "minutes_training": self._minutes(),
        }

    def _minutes(self) -> float:
        """Since the last call."""
        began = self._began
        self._began = seconds_now()
        return round((self._began - began) / 60, 1)


_SAMPLED = """{answers} plain answers to {problems} problems in {minutes_sampling} minutes:
  right                                  {solved:.3f}
  cut off                                {cut_off:.3f}"""
_MEASURED = """{n} held-out problems, one sampled turn each:
  right                                  {right}
  form kept                              {form}
  AUROC of the stated confidence         {auroc_confidence}  (self-check decoded greedily)
  AUROC of the log-probability, mean     {auroc_logprob_mean}  (of the solution's tokens)
  AUROC of the log-probability, sum      {auroc_logprob_sum}"""


def _check(dialogue: Dialogue, task: Task, count: int, start: WarmStartConfig) -> None:
    require(
        isinstance(dialogue, SelfVerifying),
        "model.recipe: its prompts ask for no self-check, so there is none to teach; leave it out, "
        "or name SVR",
    )
    require(
        can_be_written(task),
        f"task {task.name}: its prompts ask for {task.style.request!r}, without a YOUR_ANSWER in "
        "whose place a plain answer could be written; give its style one",
    )
    require(
        start.held_out < count,
        f"start.held_out={start.held_out} of {count} problems leaves none to train on; lower it",
    )


def split(
    problems: Sequence[Problem], held_out: int, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Problems to train on and problems held out; no cluster is in both."""
    rng = SeedContext(run_seed=seed).generator("", "held out")
    drawn = rng.sample(problems, held_out)
    ids = {problem.id for problem in drawn}
    clusters = {problem.cluster for problem in drawn} - {None}
    rest = [one for one in problems if one.id not in ids and one.cluster not in clusters]
    require(bool(rest), "start.held_out: every problem shares a cluster with one that is held out")
    return rest, drawn


def _plain_evaluator(
    module: Any, task: Task, start: WarmStartConfig, root: Path
) -> tuple[Evaluator, str]:
    """What samples the plain answers, each problem's as independent turns, and its fingerprint."""
    sentence = start.prompt
    if sentence is None:
        form = f"Please reason step by step, and end with {task.style.request}."
        sentence = SENTENCES.get(task.name, form)
    drawn: Decoding = module.sampling
    config = EvaluationConfig(
        max_turns=start.samples,
        adaptive=False,
        fresh_turns=True,
        max_completion_tokens=drawn.max_completion_tokens,
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        top_k=drawn.top_k,
    )
    fingerprint = f"{record_fingerprint(module, 'train', config)} {start.held_out} {sentence}"
    evaluator = Evaluator(
        module.engine,
        config,
        recipe=PlainAnswers(sentence=sentence),
        renderer=module.actor.renderer,
        folder=root / PLAIN,
        seed=module.seed,
        fingerprint=fingerprint,
        sampling=module.actor.sampling,
    )
    return evaluator, fingerprint


def encoded_turns(
    module: Any, records: Sequence[SampleRecord], start: WarmStartConfig
) -> list[Encoded]:
    """The turns to train on: those that read back as they were written.

    Raises:
        ConfigError: if there are too few right or wrong ones.
    """
    renderer = module.actor.renderer
    encoded = []
    labels = []
    for record in records:
        if record.error is not None:
            continue
        documents = checked_turns(
            module.recipe.dialogue,
            record.problem,
            record.turns,
            start.target,
            SeedContext(run_seed=module.seed).generator(record.id, "warm start"),
            module.evaluation.max_turns,
        )
        for document in documents:
            turn = encode(renderer, document, start.check_weight)
            learned = [
                token for token, weight in zip(turn.ids, turn.weights, strict=True) if weight
            ]
            same = renderer.completion_text(learned) == document.completion
            if same and len(turn.ids) <= renderer.max_model_len:
                encoded.append(turn)
                labels.append(bool(document.correct))
    right = sum(labels)
    wrong = len(labels) - right
    require(
        min(right, wrong) >= FEWEST or (start.target == "random" and len(labels) >= FEWEST),
        f"of the plain answers {right} right and {wrong} wrong ones could be written as turns, and "
        f"a self-check is learned from at least {FEWEST} of each: give more problems, easier or "
        "harder ones, a larger model.sampling.max_completion_tokens, or a start.prompt that asks "
        f"for the form of {record.task}'s answers",
    )
    return encoded


def shuffled(encoded: Sequence[Encoded], seed: int) -> Iterator[Encoded]:
    """Endless passes, each in an order of its own."""
    for number in count():
        rng = SeedContext(run_seed=seed, step=number).generator("", "order")
        yield from rng.sample(encoded, len(encoded))


def freeze_lower_layers(model: Any, share: float) -> None:
    """Leave only this share of the layers trainable, from the top; 1 and adapters change nothing.

    Raises:
        ConfigError: if the model's layers cannot be found.
    """
    if share == 1 or is_adapted(model):
        return
    layers = list(getattr(model.get_decoder(), "layers", ()))
    require(
        bool(layers),
        f"start.train_layers={share}: a {type(model).__name__} has no list of layers; set 1",
    )
    model.requires_grad_(False)
    for layer in layers[len(layers) - math.ceil(share * len(layers)) :]:
        layer.requires_grad_(True)


# --- what came of it ----------------------------------------------------------------------------


def measure(module: Any, problems: Sequence[Problem]) -> dict[str, float | None]:
    """One sampled first turn on each problem, its self-check decoded greedily.

    A turn that was cut off states nothing. The log-probabilities are of the solution's tokens.
    """
    renderer = module.actor.renderer
    dialogue = module.recipe.dialogue
    driver = Driver(module.engine, renderer, run_seed=module.seed, step=1, greedy_check=True)
    jobs = [Job(one, 0, chain(dialogue, one, 0, 1), module.sampling) for one in problems]
    module.actor.weights_replaced()
    with module.actor.sampling(1):
        trajectories = dict(driver.stream(jobs))
    right, form, stated, means, sums = [], [], [], [], []
    for number, problem in enumerate(problems):
        (turn,) = trajectories[number].turns
        text = turn.completion.text
        task = get_task(problem.task)
        begins = self_check_start(text, turn.reading.check)
        characters = renderer.characters(turn.sampled.token_ids)
        lengths = range(1, len(turn.sampled.token_ids) + 1)
        solution = turn.sampled.logprobs[: bisect_right(lengths, begins, key=characters)]
        right.append(label(task, turn.reading.final_part(text), problem).correct)
        form.append(dialogue.formats(task, turn) == (1.0, 1.0))
        stated.append(turn.check.confidence)
        means.append(fmean(solution or [0.0]))
        sums.append(math.fsum(solution))
    labels = np.array(right)
    return {
        "right": fmean(right),
        "form": fmean(form),
        "auroc_confidence": finite(auroc(np.array(stated), labels)),
        "auroc_logprob_mean": finite(auroc(np.array(means), labels)),
        "auroc_logprob_sum": finite(auroc(np.array(sums), labels)),
    }
