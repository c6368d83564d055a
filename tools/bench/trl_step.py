"""TRL's side of ``tools.bench.step``: GRPOTrainer on the same policy, problems and rewards.

    pip install trl==1.16.0
    python -m tools.bench.trl_step --turns 3 --steps 12 --out steps.json

One turn is GRPOTrainer as it stands. More turns go through its ``rollout_func``: each turn is one
batch that TRL renders and generates itself, the next prompts are built from its completions by the
same code as on the other side, and TRL trains on the last turn.
"""

import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Completion, FinishReason, Problem, Trajectory, Turn
from svr_lightning.recipes.chain import refinement_chain
from svr_lightning.tasks import get_task
from svr_lightning.tasks.messages import first_turn_messages
from tools.bench.step_workload import (
    BETA,
    BETAS,
    CLIP_EPS,
    GRADIENT_CLIP,
    GROUP,
    LEARNING_RATE,
    MAX_TOKENS,
    PROBLEMS,
    TEMPERATURE,
    WEIGHT_DECAY,
    Notebook,
    arguments,
    problems_in_order,
    recipe,
    returns,
)

FOLDER = str(files("svr_lightning.tiny") / "countdown_policy")
NO_TOKEN = 1_000_000
"""Beyond the vocabulary: None would let the model's own stop token in again."""


class NotingTrainer(GRPOTrainer):
    """GRPOTrainer that also notes how long its rollouts take and how many tokens they have."""

    notebook: Notebook

    def _generate(self, prompts: list[Any]) -> Any:
        began = time.perf_counter()
        result = super()._generate(prompts)
        self.notebook.rollout += time.perf_counter() - began
        self.notebook.trained_tokens += sum(map(len, result[1]))
        return result

    def _generate_single_turn(self, prompt_ids: list[list[int]], *rest: Any) -> Any:
        result = super()._generate_single_turn(prompt_ids, *rest)
        self.notebook.prompt_tokens += sum(map(len, prompt_ids))
        self.notebook.generated_tokens += sum(map(len, result[0]))
        return result

    def _calculate_rewards(self, *everything: Any) -> Any:
        began = time.perf_counter()
        result = super()._calculate_rewards(*everything)
        self.notebook.rollout += time.perf_counter() - began
        return result


class Noting(TrainerCallback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        self.notebook.end_step()


class Workload:
    """The rollout and reward functions that TRL calls."""

    def __init__(self, problems: Sequence[Problem], turns: int, stop_ids: frozenset[int]) -> None:
        self.recipe = recipe(turns)
        self._turns = turns
        self._stop_ids = stop_ids
        self._by_prompt = {self.first_messages(p)[-1]["content"]: p for p in problems}

    @staticmethod
    def first_messages(problem: Problem) -> list[Any]:
        """The prompt of the first turn."""
        return first_turn_messages(get_task(problem.task), problem)

    def problem(self, prompt: list[Any]) -> Problem:
        """The problem that a first prompt poses."""
        return self._by_prompt[prompt[-1]["content"]]

    def roll_out(self, prompts: list[list[Any]], trainer: NotingTrainer) -> dict[str, Any]:
        """All turns of all trajectories, one turn after the other."""
        programs = [
            refinement_chain(self.problem(prompt), index % GROUP, self._turns)
            for index, prompt in enumerate(prompts)
        ]
        asked = [next(program)[0] for program in programs]
        trajectories: list[Trajectory] = []
        while not trajectories:
            prompt_ids, *_ = trainer._tokenize_prompts(asked)
            completion_ids, _ = trainer._generate_single_turn(prompt_ids, None, {}, GROUP)
            texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
            asked = []
            for program, ids, text in zip(programs, completion_ids, texts, strict=True):
                try:
                    asked.append(program.send([self.completion(text, ids)])[0])
                except StopIteration as end:
                    trajectories.append(end.value)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": None,
            "trajectory": trajectories,
        }

    def completion(self, text: str, ids: list[int]) -> Completion:
        """A completion as rewards and prompts read it."""
        stopped = ids[-1] in self._stop_ids
        return Completion(
            prompt_ids=(),
            token_ids=tuple(ids),
            logprobs=(),
            text=text,
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=0,
        )

    def reward_trajectories(self, trajectory: list[Trajectory], **_: Any) -> list[float]:
        """Rewards of what :meth:`roll_out` returned."""
        return returns(trajectory, self.recipe)

    def reward_completions(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[Any], **_: Any
    ) -> list[float]:
        """Rewards of single turns that TRL rolled out by itself."""
        trajectories = []
        for prompt, ((message,), ids) in zip(
            prompts, zip(completions, completion_ids, strict=True), strict=True
        ):
            completion = self.completion(message["content"], ids)
            check = parse_self_check(completion.text)
            turn = Turn(index=1, completion=completion, check=check)
            problem = self.problem(prompt)
            trajectories.append(Trajectory(problem=problem, sample=0, turns=(turn,)))
        return returns(trajectories, self.recipe)


def configuration(options: Any) -> GRPOConfig:
    """TRL's ordinary settings, but for what the other side does too and what would slow it down."""
    return GRPOConfig(
        output_dir=str(options.out.parent / "trl"),
        seed=options.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=options.steps,
        per_device_train_batch_size=PROBLEMS * GROUP // options.micro_batches,
        gradient_accumulation_steps=options.micro_batches,
        num_generations=GROUP,
        max_completion_length=MAX_TOKENS,
        generation_kwargs={"eos_token_id": NO_TOKEN} if options.full_length else None,
        temperature=TEMPERATURE,
        beta=BETA,
        epsilon=CLIP_EPS,
        loss_type="grpo",
        shuffle_dataset=False,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=GRADIENT_CLIP,
        lr_scheduler_type="constant",
        model_init_kwargs={"dtype": "float32"},
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    """Train and write."""
    options = arguments(__doc__).parse_args()
    problems = problems_in_order(options.steps, options.seed)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    stop_ids = frozenset() if options.full_length else frozenset([tokenizer.eos_token_id])
    workload = Workload(problems, options.turns, stop_ids)
    several = options.turns > 1
    trainer = NotingTrainer(
        model=FOLDER,
        args=configuration(options),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": workload.first_messages(p)} for p in problems]),
        reward_funcs=workload.reward_trajectories if several else workload.reward_completions,
        rollout_func=workload.roll_out if several else None,
    )
    if options.full_length:
        trainer.eos_token_ids = [NO_TOKEN]  # it would cut completions at the tokenizer's
    notebook = Notebook()
    trainer.notebook = notebook
    trainer.add_callback(Noting(notebook))
    trainer.train()
    names = ("trl", "torch", "transformers", "accelerate")
    notebook.write(options.out, {name: version(name) for name in names})


if __name__ == "__main__":
    main()
