"""SVR from scratch: prompts, self-check, reward, advantage, loss and stopping rule in one file.

The method is all here, in the order in which it happens; the package only lends its half-million-
parameter policy and that policy's Countdown problems. Nothing is batched, cached or configurable.
From the same policy, problems and seed, :func:`train_step` takes the trainer's first optimizer
step (``tests/integration/test_minimal_example.py``). docs/method.md explains each part.

    python examples/svr_from_scratch.py --steps 3
"""

import argparse
import ast
import copy
import hashlib
import operator
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning.tiny.problems import generate

GROUP, HORIZON = 8, 3  # G trajectories per problem, T_tr turns each
MAX_TURNS, THRESHOLD = 10, 0.85  # T_max and gamma: only inference stops early
TEMPERATURE, MAX_TOKENS, DRAFT_LIMIT, LENGTH_SCALE = 0.9, 96, 512, 256
LR, WEIGHT_DECAY, BETAS, CLIP_NORM = 6e-4, 0.1, (0.9, 0.95), 2.0
CLIP_EPS, BETA = 0.2, 0.1  # of the loss: clip range, weight of the KL term

Row = dict[str, Any]  # a problem: {"id": ..., "nums": [8, 4, 2], "target": 10}


# 1. The prompts. They show what the policy wrote, and never whether it was right.

SYSTEM = """\
You are a careful math assistant who audits your own work.
First reason step-by-step inside <think>...</think>. \
Then give the final answer inside <answer>YOUR_EQUATION</answer>.
Finally, on a new line, output a self-verification in EXACTLY this form: \
<self_check>VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: a number in [0,1] </self_check>
Be honest and well-calibrated: \
only report CORRECT with high confidence after verifying every step."""

CUT_OFF = """\
Your previous response was CUT OFF before completion. Discard it and produce a fresh, COMPLETE \
solution. Keep <think>...</think> concise so the entire answer (including <answer>...</answer> \
and the <self_check> block) fits within the budget."""

RE_DERIVE = """\
In your previous attempt you judged the answer CORRECT (self-confidence {c:.2f}), with NO \
external confirmation. Independently re-derive the single most error-prone step. If it still \
holds, restate the SAME final answer in <answer>...</answer> and report VERDICT: CORRECT. If you \
now find a mistake, fix it and report your updated verdict honestly."""

CORRECT_IT = """\
In your previous attempt you judged the answer likely WRONG or were unsure (self-confidence \
{c:.2f}). Locate the specific logical or arithmetic error, then produce a corrected, complete \
step-by-step solution with the final answer in <answer>...</answer> and an honest <self_check> \
block."""


@dataclass(frozen=True)
class Turn:
    """One completion, and the self-check that it ends with. It has no label."""

    prompt: list[int]
    tokens: list[int]
    text: str
    truncated: bool  # q_t: it ran into MAX_TOKENS
    verdict: str  # v_t
    confidence: float  # c_t


def question(row: Row) -> str:
    """The problem in words."""
    return (
        f"Using the numbers {row['nums']}, create an equation that equals {row['target']}. You can "
        "use basic arithmetic operations (+, -, *, /) and each number can only be used once."
    )


def user_message(row: Row, turns: list[Turn]) -> str:
    """The question alone at turn 1; later the question, the last draft and what to do with it."""
    if not turns:
        return question(row)
    last = turns[-1]
    header = f"{last.verdict} (conf {last.confidence:.2f})"
    instruction = RE_DERIVE if last.verdict == "CORRECT" else CORRECT_IT
    if last.truncated:
        header, instruction = "TRUNCATED", CUT_OFF
    mark = "[...truncated]" if len(last.text) > DRAFT_LIMIT else ""
    return (
        f"[T={len(turns) + 1}] Your self-verification last turn: {header}\n"
        f"Question: {question(row)}\n\n"
        f"Your previous solution:\n{last.text[:DRAFT_LIMIT]}{mark}\n\n"
        f"{instruction.format(c=last.confidence)}"
    )


# 2. The self-check: a verdict and a confidence, read leniently. Its form is scored strictly.

VERDICT = re.compile(
    r"\bVERDICT\b[:=\s]*(CORRECT|INCORRECT|UNSURE|RIGHT|WRONG)\b(?!\s*[,/|])", re.IGNORECASE
)
CONFIDENCE = re.compile(r"\bCONFIDENCE\b[:=\s]*(\d+\.?\d*|\.\d+)\s*(%?)", re.IGNORECASE)
BLOCK = re.compile(r"<self_check>(.*?)</self_check>", re.DOTALL | re.IGNORECASE)
ALIASES = {"RIGHT": "CORRECT", "WRONG": "INCORRECT"}
PRIOR = {"CORRECT": 0.8, "INCORRECT": 0.2, "UNSURE": 0.5}  # all of them below THRESHOLD


def final_part(text: str) -> str:
    """What counts: all that follows the reasoning, which may quote answers and self-checks."""
    return text.rpartition("</think>")[2]


def parse_self_check(text: str) -> tuple[str, float]:
    """(v_t, c_t): without a valid verdict UNSURE, without a confidence the verdict's prior."""
    block = BLOCK.search(final_part(text))
    scope = block[1] if block else final_part(text)
    word, number = VERDICT.search(scope), CONFIDENCE.search(scope)
    said = word[1].upper() if word else "UNSURE"
    verdict = ALIASES.get(said, said)
    if number is None:
        return verdict, PRIOR[verdict]
    value = float(number[1])
    return verdict, min(value / 100 if number[2] or value > 1 else value, 1.0)


def self_check_format(text: str) -> float:
    """r_scfmt: 1 for a complete block with both fields, 0 for a broken one, -1 for none."""
    block = BLOCK.search(final_part(text))
    if block is None:
        return 0.0 if "<self_check>" in final_part(text).lower() else -1.0
    return 1.0 if VERDICT.search(block[1]) and CONFIDENCE.search(block[1]) else 0.0


# 3. One trajectory. Training takes all its turns; inference stops at the first confident CORRECT.


def stops(turn: Turn) -> bool:
    """The gate: a complete answer, called CORRECT, with enough confidence."""
    return not turn.truncated and turn.verdict == "CORRECT" and turn.confidence >= THRESHOLD


def refine(
    model: Any, tokenizer: Any, row: Row, seeds: list[int], adaptive: bool = False
) -> list[Turn]:
    """A turn for each seed, or fewer if the policy may stop."""
    turns: list[Turn] = []
    for seed in seeds:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": user_message(row, turns)},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = list(tokenizer.encode(text, add_special_tokens=False))
        tokens = sample(model, prompt, seed, tokenizer.eos_token_id)
        written = tokenizer.decode(tokens, skip_special_tokens=True)
        cut_off = tokens[-1] != tokenizer.eos_token_id
        turns.append(Turn(prompt, tokens, written, cut_off, *parse_self_check(written)))
        if adaptive and stops(turns[-1]):
            break
    return turns


@torch.no_grad()
def sample(model: Any, prompt: list[int], seed: int, eos: int) -> list[int]:
    """A completion, token by token, by inverting each distribution at a uniform number."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(MAX_TOKENS, generator=generator, dtype=torch.float64)
    tokens: list[int] = []
    new, cache = prompt, None
    while len(tokens) < MAX_TOKENS and eos not in tokens:
        output = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cumulative = (output.logits[0, -1] / TEMPERATURE).softmax(dim=-1).double().cumsum(dim=-1)
        target = draws[len(tokens)] * cumulative[-1]
        tokens.append(int(torch.searchsorted(cumulative, target, right=True)))
        new, cache = tokens[-1:], output.past_key_values
    return tokens


def seeds_of(run: int, step: int, problem: str, trajectory: int, turns: int) -> list[int]:
    """Every turn has a seed of its own, the same one whatever was drawn before."""
    place = f"{run}\0{step}\0{problem}\0{trajectory}"
    keys = [f"{place}\0{turn}\0{0}\0generate" for turn in range(1, turns + 1)]
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    return [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]


# 4. The labels and the reward. Only here does a reference matter.

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(node: Any) -> Fraction:
    """The exact value of a parsed expression; KeyError for anything but + - * / of integers."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        return {ast.USub: -1, ast.UAdd: 1}[type(node.op)] * value(node.operand)
    return OPERATORS[type(getattr(node, "op", None))](value(node.left), value(node.right))


def grade(text: str, row: Row) -> bool:
    """y_t: the equation in the answer uses every number once and reaches the target."""
    answer = re.search(r"<answer>(.*?)</answer>", final_part(text), re.DOTALL)
    left = answer[1].partition("=")[0].strip() if answer else ""
    if not re.fullmatch(r"[0-9+\-*/() ]{1,200}", left):
        return False
    try:
        reached = value(ast.parse(left, mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError):
        return False
    used = Counter(int(digits) for digits in re.findall("[0-9]+", left))
    return reached == row["target"] and used == Counter(row["nums"])


def task_format(text: str) -> float:
    """r_taskfmt: reasoning, then an answer, and nothing else but the self-check."""
    rest = BLOCK.sub("", text).strip()
    form = r"<think>.*?</think>\s*<answer>.*?</answer>"
    return 1.0 if re.fullmatch(form, rest, re.DOTALL) else 0.0


def rewards(turns: list[Turn], row: Row) -> list[float]:
    """r_t = solve + verify + format of every turn, with the paper's coefficients."""
    earned: list[float] = []
    before: bool | None = None
    for turn in turns:
        y, q, c = grade(turn.text, row), turn.truncated, turn.confidence
        says_right, says_wrong = turn.verdict == "CORRECT", turn.verdict == "INCORRECT"

        absolute = y * (1 - 0.5 * min(len(turn.tokens), LENGTH_SCALE) / LENGTH_SCALE)
        progress = 0.0
        if before is not None:
            kept, lost, failed = before and y, before and not y, not before and not y
            progress = 0.3 * (y - before) + 0.3 * kept - 0.5 * lost - 0.3 * failed
        solve = absolute + progress - 0.5 * q

        verify = (
            0.5 * (1 - (c - y) ** 2)  # calibration: a Brier score
            - 0.8 * c * (says_right and not y)  # overconfidence
            + 0.2 * (says_wrong and not y)  # an error detected
            + 0.3 * c * (says_right and y)  # ready to stop
        )
        form = 0.4 * (task_format(turn.text) + self_check_format(turn.text))
        earned.append(solve + (0.0 if q else verify) + form)
        before = y
    return earned


# 5. The update: a trajectory's return, compared with its group, moves its last completion.


def advantages(returns: list[float]) -> list[float]:
    """A_i = (R_i - mean) / (std + 1e-4) within one problem's group."""
    if len(set(returns)) == 1:
        return [0.0] * len(returns)
    mean, scale = fmean(returns), stdev(returns) + 1e-4
    return [(one - mean) / scale for one in returns]


def logprobs(model: Any, turn: Turn) -> Tensor:
    """[L] log-probabilities of a completion's tokens, at the sampling temperature."""
    logits = model(torch.tensor([turn.prompt + turn.tokens])).logits[0, len(turn.prompt) - 1 : -1]
    chosen = torch.tensor(turn.tokens)
    return (logits / TEMPERATURE).log_softmax(dim=-1)[torch.arange(len(chosen)), chosen]


def sequence_loss(policy: Any, reference: Any, turn: Turn, advantage: float) -> Tensor:
    """GRPO's clipped surrogate and a KL penalty, averaged over one completion's tokens."""
    logp = logprobs(policy, turn)
    with torch.no_grad():
        reference_logp = logprobs(reference, turn)
    ratio = (logp - logp.detach()).exp()  # 1, with the gradient of logp: one update per rollout
    clipped = ratio.clamp(1 - CLIP_EPS, 1 + CLIP_EPS)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    gap = reference_logp - logp
    return (BETA * (gap.exp() - gap - 1) - surrogate).mean()


@dataclass(frozen=True)
class Step:
    """What one optimizer step saw, for all problems one after the other."""

    trajectories: list[list[Turn]]
    rewards: list[list[float]]
    advantages: list[float]
    loss: float


def make_optimizer(policy: torch.nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """AdamW, without weight decay on norms and biases."""
    matrices = [p for p in policy.parameters() if p.ndim >= 2]
    vectors = [p for p in policy.parameters() if p.ndim < 2]
    decayed = {"params": matrices, "weight_decay": WEIGHT_DECAY}
    return torch.optim.AdamW(
        [decayed, {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=BETAS
    )


def train_step(
    policy: Any, reference: Any, tokenizer: Any, optimizer: Any, rows: list[Row], seed: int, at: int
) -> Step:
    """Step number ``at``: G trajectories for each problem, then one update."""
    seen = Step([], [], [], 0.0)
    for row in rows:
        group = [
            refine(policy, tokenizer, row, seeds_of(seed, at, row["id"], i, HORIZON))
            for i in range(GROUP)
        ]
        earned = [rewards(turns, row) for turns in group]
        seen.trajectories.extend(group)
        seen.rewards.extend(earned)
        seen.advantages.extend(advantages([fmean(one) for one in earned]))
    pairs = zip(seen.trajectories, seen.advantages, strict=True)
    losses = [sequence_loss(policy, reference, turns[-1], a) for turns, a in pairs]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP_NORM)
    optimizer.step()
    return Step(seen.trajectories, seen.rewards, seen.advantages, loss.item())


def main() -> None:
    """Train the embedded policy for a few steps, then watch it solve a new problem."""
    parser = argparse.ArgumentParser(description="SVR in one file")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--problems", type=int, default=2, help="problems per step")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    folder = str(files("svr_lightning.tiny") / "countdown_policy")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = make_optimizer(policy)
    problems = generate("train")
    for at in range(options.steps):
        rows = problems[at * options.problems : (at + 1) * options.problems]
        step = train_step(policy, reference, tokenizer, optimizer, rows, options.seed, at)
        mean = fmean(fmean(earned) for earned in step.rewards)
        print(f"step {at + 1}  mean return {mean:+.3f}")

    row = generate("test")[0]
    seeds = seeds_of(options.seed, options.steps, row["id"], 0, MAX_TURNS)
    print(question(row))
    for turn in refine(policy, tokenizer, row, seeds, adaptive=True):
        print(f"\n{turn.text}\n({'right' if grade(turn.text, row) else 'wrong'})")


if __name__ == "__main__":
    main()
