"""SVR with TRL's GRPOTrainer, on the policy that ships with this package.

    pip install -e ".[trl]"
    python examples/train_with_trl.py --steps 20

Replace the policy by any chat model and the problems by your own: docs/extending.md.
"""

import argparse
import tempfile
from importlib.resources import files
from typing import Any

from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from svr_lightning.adapters.trl import SVRRollouts
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.sources import DataSource, load_problems

POLICY = str(files("svr_lightning.tiny") / "countdown_policy")
GROUP = 8


def make_trainer(rollouts: SVRRollouts, folder: str, **settings: Any) -> GRPOTrainer:
    """GRPOTrainer with the paper's loss, group-relative advantages and clipping."""
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "loss_type": "grpo",
        "beta": 0.1,
        "epsilon": 0.2,
        "temperature": 0.9,
        "num_generations": GROUP,
        "per_device_train_batch_size": 2 * GROUP,
        "max_completion_length": 96,
        "learning_rate": 1e-4,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "max_grad_norm": 2.0,
        "lr_scheduler_type": "constant",
        "reward_weights": list(rollouts.reward_weights),
        "model_init_kwargs": {"dtype": "float32"},
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    return GRPOTrainer(
        model=POLICY,
        args=GRPOConfig(**arguments | settings),
        processing_class=AutoTokenizer.from_pretrained(POLICY),
        train_dataset=rollouts.dataset,
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    options = parser.parse_args()
    source = DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    problems = load_problems(source)[: 2 * options.steps]
    rollouts = SVRRollouts(problems, SVR(horizon=3, length_scale=256))
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(rollouts, folder, max_steps=options.steps)
        trainer.train()
        for row in trainer.state.log_history[:-1]:
            reward, right = (row[f"rewards/{f.__name__}/mean"] for f in rollouts.reward_funcs)
            print(f"step {row['step']}  reward {reward:.3f}  last turn correct {right:.3f}")


if __name__ == "__main__":
    main()
