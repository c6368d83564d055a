"""Calibration rewards in TRL's plain GRPOTrainer, on the policy that ships with this package.

    pip install -e ".[trl]"
    python examples/calibrate_with_trl.py --steps 20

Each answer states a verdict and a confidence, and earns a proper score of the confidence beside
the reward for being correct. Replace the policy by any chat model and the problems by your own.
"""

import argparse
import tempfile
from importlib.resources import files

from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from svr_lightning.training.sources import DataSource, load_problems
from svr_lightning.trl_rewards import brier, correct, dataset, log_score, verdict

POLICY = str(files("svr_lightning.tiny") / "countdown_policy")
RULES = {"brier": brier, "log": log_score, "verdict": verdict}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--rule", choices=RULES, default="brier", help="what scores self-checks")
    options = parser.parse_args()
    source = DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    rewards = [correct, RULES[options.rule]]
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
            train_dataset=dataset(load_problems(source)[: 2 * options.steps]),
            reward_funcs=rewards,
        )
        trainer.train()
        for row in trainer.state.log_history[:-1]:
            parts = [f"{one.__name__} {row[f'rewards/{one.__name__}/mean']:.3f}" for one in rewards]
            print(f"step {row['step']}  " + "  ".join(parts))


if __name__ == "__main__":
    main()
