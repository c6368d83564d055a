"""``svr warmstart``: teach any policy the form of SVR's turns, on its own answers.

The policy answers each training problem several times under a plain prompt. Its graded answers
become turns of SVR's form (:mod:`svr_lightning.training.documents`), and it is trained on them: on
the words and on the verdict by cross-entropy, and on a confidence by the Brier score.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from msgspec import Meta

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import self_check_start
from svr_lightning.core.ranges import Checked, Count, Positive
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Message, Problem, Turn
from svr_lightning.engines.acting_weights import is_adapted
from svr_lightning.errors import require
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.files import finite, write_json
from svr_lightning.policy.policy import seconds_now
from svr_lightning.recipes.dialogues import Dialogue, SelfVerifying
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.tasks import Task, get_task
from svr_lightning.training.documents import (
    Document,
    Encoded,
    can_be_written,
    checked_turns,
    encode,
)
from svr_lightning.training.evaluating import quoted_config, record_fingerprint
from svr_lightning.training.export import export_policy
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
class WarmStartConfig(Checked):
    """The options of ``svr warmstart``."""

    samples: Count = 4
    """Plain answers to each training problem."""
    held_out: Count = 100
    """Training problems that are not trained on, and measure what came of it."""
    prompt: str | None = None
    """What the plain prompt adds to the question; or, with ``{question}`` in it, all of the prompt,
    such as worked examples before the question. None asks for the task's form of an answer."""
    passes: Positive = 2.0
    """How often each turn is trained on, on average."""
    batch: Count = 8
    """Turns per optimizer step."""
    rate: Positive = 2e-5
    """Peak learning rate."""
    train_layers: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of the layers, from the top, that train; embeddings and output layer train only at 1.
    With ``model.policy.lora`` the adapters train instead."""
    check_weight: Positive = 16.0
    """Weight of the tokens of a self-check in the loss; all others weigh 1."""


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
        evaluator = self._plain_evaluator()
        encoded = self._turns(evaluator.solve(self.training, "plain"))
        facts = f"{evaluator.fingerprint} {self.start} {self.module.evaluation.max_turns}"
        digest = hashlib.sha256(facts.encode()).hexdigest()[:12]
        checkpoint = self.root / f"warmstart-{digest}.ckpt"
        self._train(encoded, checkpoint)
        measured = self._measure()
        self.facts |= {"held_out": measured, "minutes_measuring": self._minutes()}
        shown = {k: "undefined" if v is None else f"{v:.3f}" for k, v in measured.items()}
        rank_zero_info(_MEASURED.format(n=len(self.held_out), **shown))
        write_json(self.root / "warmstart.json", self.facts)
        rank_zero_info(f"policy: {export_policy(self.module, self.root)}")
        quoted = quoted_config(self.module, evaluator.config)
        evaluator.finish(quoted)  # removes the journal, so it comes last
        for left in self.root.glob("warmstart-*.ckpt"):  # of other options, too
            left.unlink()

    def _plain_evaluator(self) -> Evaluator:
        """What samples the plain answers, each problem's as independent turns."""
        module = self.module
        sentence = self.start.prompt
        if sentence is None:
            form = f"Please reason step by step, and end with {self.task.style.request}."
            sentence = SENTENCES.get(self.task.name, form)
        config = EvaluationConfig(
            **vars(module.sampling),
            max_turns=self.start.samples,
            adaptive=False,
            fresh_turns=True,
        )
        inputs = record_fingerprint(module, "train", config)
        return Evaluator(
            module.actor,
            config,
            recipe=PlainAnswers(sentence=sentence),
            folder=self.root / PLAIN,
            seed=module.seed,
            fingerprint=f"{inputs} {self.start.held_out} {sentence}",
        )

    def _turns(self, records: Sequence[SampleRecord]) -> list[Encoded]:
        """The turns to train on, from the plain answers: those that read back as they were written.

        Raises:
            ConfigError: if there are too few right or wrong ones.
        """
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
        renderer = self.module.actor.renderer
        encoded = []
        for document in self._documents(records):
            turn = encode(renderer, document, self.start.check_weight)
            learned = [
                token for token, weight in zip(turn.ids, turn.weights, strict=True) if weight
            ]
            fits = len(turn.ids) <= renderer.max_model_len
            if fits and renderer.completion_text(learned) == document.completion:
                encoded.append(turn)
        right = sum(turn.correct for turn in encoded)
        wrong = len(encoded) - right
        seen = "".join(turn.text[-60:] for turn in answers[:1])
        require(
            min(right, wrong) >= FEWEST,
            f"of the plain answers {right} right and {wrong} wrong ones could be written as turns, "
            f"and a self-check is learned from at least {FEWEST} of each: give more problems, "
            "easier or harder ones, a larger model.sampling.max_completion_tokens, or a "
            f"start.prompt that asks for the form of {self.task.name}'s answers; the first answer "
            f"ends with {seen!r}",
        )
        return encoded

    def _documents(self, records: Sequence[SampleRecord]) -> Iterator[Document]:
        """The answered problems' turns under the prompts of the recipe."""
        for record in records:
            if record.error is None:
                yield from checked_turns(
                    self.module.recipe.dialogue,
                    record.problem,
                    record.turns,
                    SeedContext(run_seed=self.module.seed).generator(record.id, "warm start"),
                    self.module.evaluation.max_turns,
                )

    def _train(self, encoded: Sequence[Encoded], checkpoint: Path) -> None:
        module, start = self.module, self.start
        steps = math.ceil(start.passes * len(encoded) / start.batch)
        length = fmean(len(turn.ids) for turn in encoded)
        rank_zero_info(
            f"{len(encoded)} turns of {length:.0f} tokens, prompts included; start.passes makes "
            f"{steps} steps of them, whatever trainer.max_steps is"
        )
        freeze_lower_layers(module.policy, start.train_layers)
        losses = train(
            module.policy,
            shuffled(encoded, module.seed),
            steps=steps,
            rate=start.rate,
            batch=start.batch,
            micro_batch=module.micro_batch_size,
            checkpoint=checkpoint,
        )
        self.facts |= {
            "turns": len(encoded),
            "steps": steps,
            "loss": losses[-1],
            "minutes_training": self._minutes(),
        }

    def _measure(self) -> dict[str, float | None]:
        """One sampled first turn on each held-out problem, its self-check decoded greedily.

        No stop accepts a turn that does not keep the form, such as one that was cut off. So it
        ranks last; the confidence that it is read as would rank it above doubts that were stated.
        """
        module = self.module
        turns: dict[str, Turn] = {}
        evaluator = Evaluator(
            module.actor,
            EvaluationConfig(**vars(module.sampling), max_turns=1, greedy_check=True),
            recipe=module.recipe,
            folder=self.root / "eval" / "held_out",
            seed=module.seed,
            step=1,
        )
        module.actor.synced = None  # training has changed them
        records = evaluator.solve(
            self.held_out,
            "held out",
            on_turn=lambda problem, turn: turns.update({problem.id: turn}),
        )
        evaluator.finish(quoted_config(module, evaluator.config))
        answered = [(record.turns[0], turns[record.id]) for record in records if record.turns]
        right = np.array([bool(seen.correct) for seen, _ in answered])
        scores = np.full((3, len(answered)), -np.inf)
        for number, (seen, turn) in enumerate(answered):
            if evaluator.dialogue.formats(self.task, turn) == (1.0, 1.0):
                solution = (0, self_check_start(turn.completion.text, turn.reading.check))
                _, length = module.actor.renderer.tokens_of(solution, turn.sampled.token_ids)
                mean = seen.solution_logprob or 0.0
                scores[:, number] = seen.confidence, mean, mean * length
        stated, means, sums = (finite(auroc(row, right)) for row in scores)
        return {
            "right": right.sum() / len(records),
            "form": np.isfinite(scores[0]).sum() / len(records),
            "auroc_confidence": stated,
            "auroc_logprob_mean": means,
            "auroc_logprob_sum": sums,
        }

    def _minutes(self) -> float:
        """Since the last call."""
        began, self._began = self._began, seconds_now()
        return round((self._began - began) / 60, 1)


_SAMPLED = """{answers} plain answers to {problems} problems in {minutes_sampling} minutes:
  right                                  {solved:.3f}
  cut off                                {cut_off:.3f}"""
_MEASURED = """{n} held-out problems, one sampled turn each:
  right                                  {right}
  form kept                              {form}
  AUROC of the stated confidence         {auroc_confidence}  (self-check decoded greedily)
  AUROC of the log-probability, mean     {auroc_logprob_mean}  (of the solution's tokens)
  AUROC of the log-probability, sum      {auroc_logprob_sum}
In all three, turns that do not keep the form rank last."""


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
    rest = [
        problem for problem in problems if problem.id not in ids and problem.cluster not in clusters
    ]
    require(bool(rest), "start.held_out: every problem shares a cluster with one that is held out")
    return rest, drawn


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
