"""Build the embedded policy from scratch: ``python -m tools.warmstart --out FOLDER``.

A Qwen3 of half a million parameters reads demonstrations until it searches as they do, and is as
overconfident. Nothing is downloaded: problems, traces and tokenizer come from this package.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from svr_lightning.core.schedule import warmup_stable_decay
from tools.warmstart.method_traces import method_documents
from tools.warmstart.tokenizer import build_tokenizer
from tools.warmstart.traces import INSIST_CHANCE, Document, documents

DEFAULT_STEPS = 6000
SECOND_STAGE, THIRD_STAGE = 8, 4
"""The second and third stage take this fraction of the first stage's steps: 1/8 and 1/4."""
DOCUMENTS_PER_STEP = 32
DOCUMENTS_PER_BATCH = 16
LEARNING_RATE = 3e-3
LATER_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A document in token ids."""

    ids: list[int]
    """[L] prompt, completion and end of turn."""
    learn: list[bool]
    """[L] True on tokens to predict: the completion, and the draft inside the prompt."""


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> Encoded:
    """Render a document with the chat template and mark the tokens to learn."""
    rendered = tokenizer.apply_chat_template(
        document.messages, add_generation_prompt=True, tokenize=False
    )
    assert isinstance(rendered, str)
    prompt = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
    completion = tokenizer(document.completion, add_special_tokens=False)["input_ids"]
    learn = [False] * len(prompt["input_ids"])
    if document.draft:
        start = rendered.index(document.draft)
        end = start + len(document.draft)
        learn = [start <= left and right <= end for left, right in prompt["offset_mapping"]]
    return Encoded(
        ids=[*prompt["input_ids"], *completion, tokenizer.eos_token_id],
        learn=[*learn, *[True] * (len(completion) + 1)],
    )


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """An untrained policy."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Iterator[Document],
    *,
    steps: int,
    lr: float,
    report_every: int = 50,
) -> list[float]:
    """Train in place on fresh demonstrations; returns the loss of every step, in nats a token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: warmup_stable_decay(
            step, steps, warmup_fraction=0.02, decay_fraction=0.5, floor=0.01
        ),
    )
    encoded = (encode(tokenizer, document) for document in demonstrations)
    losses: list[float] = []
    tokens, started = 0, time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        chosen = sorted(itertools.islice(encoded, DOCUMENTS_PER_STEP), key=lambda e: len(e.ids))
        losses.append(_accumulate(model, chosen))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        tokens += sum(len(e.ids) for e in chosen)
        if step % report_every == 0 or step == steps:
            recent = losses[-report_every:]
            seconds = time.monotonic() - started
            print(
                f"step {step}/{steps}  loss {sum(recent) / len(recent):.4f}  "
                f"{tokens / seconds:,.0f} tokens/s  {seconds:.0f} s",
                flush=True,
            )
    return losses


def build(out: Path, *, steps: int = DEFAULT_STEPS, seed: int = 0) -> list[float]:
    """Tokenizer, model, training, and a checkpoint folder at ``out``; returns the losses.

    The first stage teaches to search, the second to insist on what was called CORRECT, the third
    the prompts of the methods that SVR is compared with.
    """
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    losses = train(model, tokenizer, documents(seed), steps=steps, lr=LEARNING_RATE)
    losses += train(
        model,
        tokenizer,
        documents(seed + 1, insist=INSIST_CHANCE),
        steps=max(1, steps // SECOND_STAGE),
        lr=LATER_LEARNING_RATE,
    )
    losses += train(
        model,
        tokenizer,
        method_documents(seed + 2),
        steps=max(1, steps // THIRD_STAGE),
        lr=LATER_LEARNING_RATE,
    )
    model.eval()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--steps", type=int, default=DEFAULT_STEPS, help="optimizer steps of the first stage"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    build(options.out, steps=options.steps, seed=options.seed)


def _accumulate(model: Qwen3ForCausalLM, chosen: list[Encoded]) -> float:
    """Add the gradient of one step, in batches of similar length; returns its mean loss."""
    total = sum(sum(e.learn[1:]) for e in chosen)
    loss_sum = 0.0
    for batch in _batches(chosen):
        ids, learn = _pad(batch)
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[learn[:, 1:]])
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][learn[:, 1:]], reduction="sum")
        (loss / total).backward()
        loss_sum += loss.item()
    return loss_sum / total


def _batches(chosen: list[Encoded]) -> Iterator[list[Encoded]]:
    for start in range(0, len(chosen), DOCUMENTS_PER_BATCH):
        yield chosen[start : start + DOCUMENTS_PER_BATCH]


def _pad(batch: list[Encoded]) -> tuple[Tensor, Tensor]:
    """Right-pad: [B, L] ids and [B, L] learn. Causal attention never reaches the padding."""
    longest = max(len(e.ids) for e in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    learn = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, e in enumerate(batch):
        ids[row, : len(e.ids)] = torch.tensor(e.ids)
        learn[row, : len(e.ids)] = torch.tensor(e.learn)
    return ids, learn
