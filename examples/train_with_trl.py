"""SVR with TRL's GRPOTrainer: a rollout function to copy and change.

    pip install -e ".[trl]"
    python examples/train_with_trl.py --steps 20

TRL samples, compares and updates; prompts, grading and rewards are those of this package. TRL takes
one sequence per trajectory, and each turn has a prompt of its own. So, as in SVR, the last turn is
trained, with the mean reward of all turns; with ``--credit turn`` it is a drawn turn, with its own
advantage among the same turns of the group. Degenerate groups are not replaced.

Replace the policy by any chat model and the problems by your own: docs/extending.md. TRL calls
rollout functions experimental, and its generation, which :class:`Generation` uses, is private.
"""

import argparse
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from svr_lightning.core.credit import turn_advantages
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, FinishReason, Message, Problem, Trajectory
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.policy.policy import Policy
from svr_lightning.recipes.base import rewards_of
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks.grading import score_turns
from svr_lightning.training.sources import DataSource, load_problems

POLICY = str(files("svr_lightning.tiny") / "countdown_policy")
RECIPE = SVR(horizon=3, length_scale=256)  # prompts and rewards; the rest is in make_trainer
MAX_PROMPT_TOKENS = 512  # longer prompts are cut, as in this package's own training
GROUP = 8


class SVRRollouts:
    """TRL's ``rollout_func``: all turns of one trajectory for each prompt.

    Args:
        problems: to train on. Their prompts name them, since TRL hands over nothing else.
        engine: samples instead of TRL, from the model that trains, with a seed for each draw.
    """

    def __init__(self, problems: Sequence[Problem], engine: Engine | None = None) -> None:
        self.problems: dict[tuple[str, ...], Problem] = {}
        for problem in problems:
            other = self.problems.setdefault(texts(RECIPE.dialogue.first(problem)), problem)
            if other is not problem:
                both = f"{other.id!r} and {problem.id!r}"
                raise ValueError(f"problems {both} have the same prompt; keep one of them")
        self.engine = engine
        self.policy: Policy | None = None

    def __call__(self, prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        """What TRL trains on: the last turns, with a column for each reward function."""
        renderer = Renderer(
            trainer.processing_class,
            max_prompt_tokens=MAX_PROMPT_TOKENS,
            max_model_len=MAX_PROMPT_TOKENS + trainer.max_completion_length,
            chat_template_kwargs=trainer.chat_template_kwargs,
        )
        if self.policy is None:
            self.policy = Policy(trainer.accelerator.unwrap_model(trainer.model), renderer)
            self.policy.start(self.engine or Generation(trainer))
        seeds = seeds_of(trainer)
        with self.policy.sampling(seeds.step):
            driver = Driver(self.policy.engine, renderer, decoding_of(trainer), seeds)
            trajectories = driver.run(self.jobs(prompts, trainer))
        turns = [self.trained_turn(one, trainer) for one in trajectories]
        trained = [one.turns[t].sampled for one, t in zip(trajectories, turns, strict=True)]
        rewards, correct = zip(*map(graded, trajectories), strict=True)
        return {
            "prompt_ids": [list(completion.prompt_ids) for completion in trained],
            "completion_ids": [list(completion.token_ids) for completion in trained],
            "logprobs": [list(one.logprobs) for one in trained] if trainer.use_vllm else None,
            "turn": turns,
            "turn_rewards": list(rewards),
            "last_turn_correct": list(correct),
        }

    def trained_turn(self, trajectory: Trajectory, trainer: Any) -> int:
        """The turn, from 0, whose tokens are in the loss."""
        if not isinstance(trainer, TurnCredit):
            return RECIPE.horizon - 1
        draw = seeds_of(trainer).generator(trajectory.problem.id, "turn", sample=trajectory.sample)
        return draw.randrange(RECIPE.horizon)

    def jobs(self, prompts: list[list[Message]], trainer: Any) -> list[Job]:
        """A trajectory for each prompt; TRL repeats the prompt of a problem for each sample."""
        jobs = []
        first = trainer.accelerator.process_index * len(prompts)
        for index, prompt in enumerate(prompts, start=first):
            problem, sample = self.problems[texts(prompt)], index % trainer.num_generations
            rollout = chain(RECIPE.dialogue, problem, sample, RECIPE.horizon)
            jobs.append(Job(problem, sample, rollout))
        return jobs


def seeds_of(trainer: Any) -> SeedContext:
    """Seeds the draws of the present step."""
    return SeedContext(run_seed=trainer.args.seed, step=trainer.state.global_step)


def decoding_of(trainer: Any) -> Decoding:
    """How completions are drawn, as TRL's arguments say."""
    return Decoding(
        max_completion_tokens=trainer.max_completion_length,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
    )


def texts(prompt: Sequence[Message]) -> tuple[str, ...]:
    """A prompt as a key, whatever else TRL's data sets add to its messages."""
    return tuple(message["content"] for message in prompt)


class TurnCredit(GRPOTrainer):
    """Compares each trained turn with the same turn of its group's other trajectories."""

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rewards = gather_object([row["turn_rewards"] for row in inputs])  # of all processes
        advantages: list[list[float]] = []
        for start in range(0, len(rewards), self.num_generations):
            advantages += turn_advantages(rewards[start : start + self.num_generations])
        first = self.accelerator.process_index * len(inputs)
        ours = [advantages[first + place][row["turn"]] for place, row in enumerate(inputs)]
        batch["advantages"] = torch.tensor(ours, device=batch["advantages"].device)
        return batch


def graded(trajectory: Trajectory) -> tuple[list[float], float]:
    """The reward of each turn, and 1 where the last answer is correct."""
    scored = score_turns(trajectory.problem, trajectory.turns, RECIPE.dialogue.formats)
    rewards = [reward.total for reward in rewards_of(RECIPE, scored)]
    return rewards, float(scored[-1].correct)


def svr_reward(turn_rewards: list[list[float]], **_: Any) -> list[float]:
    """The return of each trajectory, which TRL compares."""
    return [sum(turns) / len(turns) for turns in turn_rewards]


def last_turn_correct(last_turn_correct: list[float], **_: Any) -> list[float]:
    """Only logged."""
    return last_turn_correct


class Generation(Engine):
    """TRL's own generation, vLLM or transformers: one batch for all that wait.

    It samples as TRL's arguments say, which the requests repeat, and has no seed for a single draw.
    """

    version, max_batch, dtype = -1, 2**31, None

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.waiting: list[Request] = []
        self.stop_ids: tuple[int, ...] = ()

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Remember what ends a completion."""
        self.stop_ids = stop_token_ids

    def sync(self, model: Any, version: int) -> None:
        """TRL hands its weights on itself."""
        self.version = version

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def cancel(self) -> None:
        """Drop the queue."""
        self.waiting.clear()

    def step(self) -> dict[int, Output]:
        """Complete all that wait."""
        requests, self.waiting = self.waiting, []
        prompts = [list(request.prompt_ids) for request in requests]
        completions, logprobs = self.trainer._generate_single_turn(prompts, None, {}, 1)
        ends = (FinishReason.LENGTH, FinishReason.STOP)
        return {
            request.id: Output(
                token_ids=tuple(ids),
                logprobs=tuple(logprobs[row]) if logprobs else (),
                finish_reason=ends[bool(ids) and ids[-1] in self.stop_ids],
                version=self.version,
            )
            for row, (request, ids) in enumerate(zip(requests, completions, strict=True))
        }


def make_trainer(
    problems: Sequence[Problem],
    folder: str,
    engine: Engine | None = None,
    trainer: type[GRPOTrainer] = GRPOTrainer,
    **settings: Any,
) -> GRPOTrainer:
    """TRL's trainer with the paper's loss, group-relative advantages and clipping."""
    rollouts = SVRRollouts(problems, engine)
    prompts = [{"prompt": RECIPE.dialogue.first(problem)} for problem in problems]
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
        "reward_weights": [1.0, 0.0],
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
    return trainer(
        model=POLICY,
        args=GRPOConfig(**arguments | settings),
        processing_class=AutoTokenizer.from_pretrained(POLICY),
        train_dataset=Dataset.from_list(prompts),
        rollout_func=rollouts,
        reward_funcs=[svr_reward, last_turn_correct],
    )


CREDIT = {"trajectory": GRPOTrainer, "turn": TurnCredit}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--credit", choices=CREDIT, default="trajectory", help="who is compared")
    options = parser.parse_args()
    source = DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    problems = load_problems(source)[: 2 * options.steps]
    with tempfile.TemporaryDirectory() as folder:
        kind = CREDIT[options.credit]
        trainer = make_trainer(problems, folder, trainer=kind, max_steps=options.steps)
        trainer.train()
        for row in trainer.state.log_history[:-1]:
            reward, right = (
                row[f"rewards/{name}/mean"] for name in ("svr_reward", "last_turn_correct")
            )
            print(f"step {row['step']}  reward {reward:.3f}  last turn correct {right:.3f}")


if __name__ == "__main__":
    main()
