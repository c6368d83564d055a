"""Calibration rewards in TRL's plain GRPOTrainer, on the policy that ships with this package.

    pip install -e ".[trl]"
    python examples/calibrate_with_trl.py --steps 20

Each answer states a verdict and a confidence, and earns a reward for them beside the one for being
correct. Replace the policy by any chat model, and ``TASK`` and ``tiny_rows`` by your own.
"""

import argparse
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import svr_lightning as svr
from svr_lightning.training.sources import load_problems

POLICY = str(files("svr_lightning.tiny") / "countdown_policy")
TASK = svr.get_task("countdown")  # also gsm8k, math, or your own


def tiny_rows(count: int) -> list[dict[str, Any]]:
    """Rows as your file would have them."""
    source = svr.DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    problems = load_problems(source)[:count]
    return [{"nums": one.payload["nums"], "target": int(one.reference)} for one in problems]


def dataset(rows: Sequence[dict[str, Any]]) -> Dataset:
    """TRL's ``train_dataset``: the rows, and prompts that ask for a self-check."""
    prompts = [svr.first_turn_messages(TASK, TASK.from_row(row)) for row in rows]
    return Dataset.from_list(
        [{"prompt": prompt, **row} for prompt, row in zip(prompts, rows, strict=True)]
    )


def texts(completions: Sequence[Any]) -> list[str]:
    """What the policy wrote: completions are texts or chat messages."""
    return [one if isinstance(one, str) else one[-1]["content"] for one in completions]


def correct(completions: Any, nums: Any, target: Any, **_: Any) -> list[bool]:
    """1 for a correct answer, else 0."""
    problems = [TASK.from_row({"nums": n, "target": t}) for n, t in zip(nums, target, strict=True)]
    return [
        TASK.grade(text, problem)
        for text, problem in zip(texts(completions), problems, strict=True)
    ]


def stated(completions: Any) -> tuple[list[svr.Verdict | None], list[float | None]]:
    """The verdict and the confidence of each answer; None where its self-check is not in form."""
    verdicts: list[svr.Verdict | None] = []
    confidences: list[float | None] = []
    for text in texts(completions):
        check = svr.parse_self_check(text)
        in_form = svr.self_check_format_score(text) == 1.0
        verdicts.append(check.verdict if in_form else None)
        confidences.append(check.confidence if in_form else None)
    return verdicts, confidences


def brier(completions: Any, **columns: Any) -> list[float]:
    """1 - (c - y)^2 of the stated confidence c."""
    _, confidences = stated(completions)
    return svr.calibration_rewards(confidences, correct(completions, **columns))


def log_score(completions: Any, **columns: Any) -> list[float]:
    """The bounded logarithmic score of the stated confidence."""
    _, confidences = stated(completions)
    return svr.calibration_rewards(confidences, correct(completions, **columns), "log")


def verification(completions: Any, **columns: Any) -> list[float]:
    """SVR's self-verification reward, of verdict and confidence."""
    return svr.verification_rewards(*stated(completions), correct(completions, **columns))


REWARDS = {"brier": brier, "log": log_score, "svr": verification}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--reward", choices=REWARDS, default="brier", help="of the self-check")
    options = parser.parse_args()
    rewards = [correct, REWARDS[options.reward]]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=POLICY,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.steps,
                reward_weights=[1.0, 0.5],
                num_generations=8,
                per_device_train_batch_size=16,
                max_completion_length=96,
                learning_rate=1e-4,
                model_init_kwargs={"dtype": "float32"},
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            processing_class=AutoTokenizer.from_pretrained(POLICY),
            train_dataset=dataset(tiny_rows(2 * options.steps)),
            reward_funcs=rewards,
        )
        trainer.train()
        for row in trainer.state.log_history[:-1]:
            parts = [f"{one.__name__} {row[f'rewards/{one.__name__}/mean']:.3f}" for one in rewards]
            print(f"step {row['step']}  " + "  ".join(parts))


if __name__ == "__main__":
    main()
