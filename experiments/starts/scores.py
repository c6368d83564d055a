"""The log-probability of recorded solutions, where only that of whole completions was recorded.

The policy reads its own text again. A completion's mean over all tokens was recorded too, so that
every turn shows whether it was read as it was sampled.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning.analysis.records import SampleRecord, TurnRecord
from svr_lightning.core.evidence import token_scores
from svr_lightning.core.prompts import first_turn_messages, refinement_messages
from svr_lightning.core.types import TokenScores
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task

_LIMITS = {"max_prompt_tokens": 512, "max_model_len": 1024}
"""Those of the configuration countdown_tiny."""
_ROUNDING = 2e-3
"""By which recorded means may differ from these: a batch of other sizes, and four decimals."""


class Scorer:
    """A policy that reads its recorded turns again.

    Args:
        policy: its folder.
        temperature: at which the turns were sampled; 1 for greedy ones.
        fresh: whether every turn answers the first prompt.
    """

    def __init__(self, policy: Path, temperature: float, *, fresh: bool) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(policy)
        self.model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
        self.renderer = Renderer(
            self.tokenizer, chat_template_kwargs={"enable_thinking": False}, **_LIMITS
        )
        self.temperature = temperature
        self.fresh = fresh
        self.unlike = 0
        """Turns that were read otherwise than sampled, and are left without a score."""

    def scored(self, record: SampleRecord) -> SampleRecord:
        """The record with ``solution_logprob`` of its turns."""
        prompts = self._prompts(record)
        completions = [self._ids(turn) for turn in record.turns]
        logprobs = self._logprobs(prompts, completions)
        turns = []
        for turn, ids, nats in zip(record.turns, completions, logprobs, strict=True):
            scores = self._scores(record, turn, ids, nats)
            stated = turn.completion_logprob
            found = scores.completion_logprob
            if stated is None or found is None or abs(stated - found) > _ROUNDING:
                self.unlike += 1
                turns.append(turn)
            else:
                turns.append(replace(turn, solution_logprob=scores.solution_logprob))
        return replace(record, turns=tuple(turns))

    def _prompts(self, record: SampleRecord) -> list[tuple[int, ...]]:
        task = get_task(record.task)
        prompts = []
        for index in range(len(record.turns)):
            messages = first_turn_messages(task, record.problem)
            if index and not self.fresh:
                past = record.turns[index - 1]
                assert past.verdict is not None
                assert past.confidence is not None
                messages = refinement_messages(
                    task,
                    record.problem,
                    previous=past.text,
                    verdict=past.verdict,
                    confidence=past.confidence,
                    truncated=past.truncated,
                    turn=index + 1,
                )
            prompts.append(tuple(self.renderer.prompt_ids(messages)))
        return prompts

    def _ids(self, turn: TurnRecord) -> tuple[int, ...]:
        ids = self.tokenizer.encode(turn.text, add_special_tokens=False)
        if not turn.truncated:
            ids = [*ids, self.tokenizer.eos_token_id]
        return tuple(ids)

    @torch.no_grad()
    def _logprobs(
        self, prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]]
    ) -> list[list[float]]:
        """[T][L] nats of every completion's tokens."""
        rows = [[*prompt, *ids] for prompt, ids in zip(prompts, completions, strict=True)]
        width = max(map(len, rows))
        ids = torch.zeros((len(rows), width), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        logits = self.model(input_ids=ids, attention_mask=mask).logits / self.temperature
        logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
        found = []
        for number, (prompt, tokens) in enumerate(zip(prompts, completions, strict=True)):
            start = len(prompt) - 1
            found.append(logp[number, start : start + len(tokens)].tolist())
        return found

    def _scores(
        self, record: SampleRecord, turn: TurnRecord, ids: Sequence[int], nats: Sequence[float]
    ) -> TokenScores:
        if len(ids) != turn.completion_tokens or not all(map(math.isfinite, nats)):
            return TokenScores()
        reading = get_task(record.task).read(turn.text)
        return token_scores(
            turn.text,
            reading,
            nats,
            lambda count: len(self.renderer.completion_text(ids[:count])),
        )
