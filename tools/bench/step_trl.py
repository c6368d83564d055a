"""TRL's side of the benchmark ``step``: GRPOTrainer on the same policy, problems and rewards.

Turns go through ``rollout_func``: each turn is one batch that TRL renders and generates itself, the
next prompts are built from its completions by the same code as on the other side, and TRL trains on
the last turn.
"""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from svr_lightning.core.types import Completion, FinishReason, Problem, Trajectory
from svr_lightning.tasks.grading import score_turns
from svr_lightning.training.data import TrainingOrder
from tools.bench import step
from tools.bench.step import GROUP, PROBLEMS, Notebook
from tools.bench.workloads import TEMPERATURE

FOLDER = str(files("svr_lightning.tiny") / "countdown_policy")


class NotingTrainer(GRPOTrainer):
    """GRPOTrainer that also notes how long its rollouts take and how many tokens they have."""

    notebook: Notebook

    def _generate(self, prompts: list[Any]) -> Any:
        with self.notebook.rolling_out():
            result = super()._generate(prompts)
        self.notebook.now.trained_tokens += sum(map(len, result[1]))
        return result

    def _generate_single_turn(self, prompt_ids: list[list[int]], *rest: Any) -> Any:
        result = super()._generate_single_turn(prompt_ids, *rest)
        self.notebook.now.prompt_tokens += sum(map(len, prompt_ids))
        self.notebook.now.generated_tokens += sum(map(len, result[0]))
        return result

    def _calculate_rewards(self, *everything: Any) -> Any:
        with self.notebook.rolling_out():
            return super()._calculate_rewards(*everything)


class Noting(TrainerCallback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        self.notebook.end_step()


class Workload:
    """The rollout and reward functions that TRL calls."""

    def __init__(self, problems: Sequence[Problem], stop_id: int) -> None:
        self.recipe = step.recipe()
        self._stop_id = stop_id
        self._by_prompt = {self.prompt_of(p)[-1]["content"]: p for p in problems}

    def prompt_of(self, problem: Problem) -> list[Any]:
        """The prompt of the first turn."""
        return self.recipe.dialogue.first(problem)

    def roll_out(self, prompts: list[list[Any]], trainer: NotingTrainer) -> dict[str, Any]:
        """All turns of all trajectories, one turn after the other."""
        programs = [
            self.recipe.programs(self._by_prompt[prompt[-1]["content"]])[index % GROUP]
            for index, prompt in enumerate(prompts)
        ]
        asked: list[Any] = [next(program)[0] for program in programs]
        trajectories: list[Trajectory] = []
        while not trajectories:
            prompt_ids, *_ = trainer._tokenize_prompts(asked)
            completion_ids, _ = trainer._generate_single_turn(prompt_ids, None, {}, GROUP)
            texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
            asked = []
            for program, ids, text in zip(programs, completion_ids, texts, strict=True):
                try:
                    asked.append(program.send([self._completion(text, ids)])[0])
                except StopIteration as end:
                    trajectories.append(end.value)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": None,
            "trajectory": trajectories,
        }

    def _completion(self, text: str, ids: list[int]) -> Completion:
        stopped = ids[-1] == self._stop_id
        return Completion(
            prompt_ids=(),
            token_ids=tuple(ids),
            logprobs=(),
            text=text,
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=0,
        )

    def reward(self, trajectory: list[Trajectory], **_: Any) -> list[float]:
        """Rewards of what :meth:`roll_out` returned."""
        scored = [
            score_turns(one.problem, one.turns, self.recipe.dialogue.formats) for one in trajectory
        ]
        return self.recipe.returns([self.recipe.reward(turns) for turns in scored])


def problems_in_order(steps: int, seed: int) -> list[Problem]:
    """The problems of the first ``steps`` steps, as the data module serves them."""
    problems = step.data_module(seed).problems("train")[0]
    order = TrainingOrder(problems, batch_size=PROBLEMS, seed=seed, rank=0, ranks=1)
    wanted = [problems[index] for index in order][: steps * PROBLEMS]
    if len(wanted) < steps * PROBLEMS:
        raise SystemExit(f"--steps {steps}: one epoch holds {len(wanted) // PROBLEMS} steps")
    return wanted


def configuration(options: Any) -> GRPOConfig:
    """TRL's settings, equal to the other side's; what would only slow TRL down is off."""
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
        max_completion_length=step.MAX_TOKENS,
        temperature=TEMPERATURE,
        beta=step.BETA,
        epsilon=step.CLIP_EPS,
        loss_type="grpo",
        shuffle_dataset=False,
        learning_rate=step.LEARNING_RATE,
        weight_decay=step.WEIGHT_DECAY,
        adam_beta1=step.BETAS[0],
        adam_beta2=step.BETAS[1],
        max_grad_norm=step.GRADIENT_CLIP,
        lr_scheduler_type="constant",
        model_init_kwargs={"dtype": "float32"},
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    """Train and write."""
    options = step.side_options(__doc__)
    problems = problems_in_order(options.steps, options.seed)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    workload = Workload(problems, tokenizer.eos_token_id)
    trainer = NotingTrainer(
        model=FOLDER,
        args=configuration(options),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": workload.prompt_of(p)} for p in problems]),
        reward_funcs=workload.reward,
        rollout_func=workload.roll_out,
    )
    trainer.notebook = Notebook()
    trainer.add_callback(Noting(trainer.notebook))
    trainer.train()
    names = ("trl", "torch", "transformers", "accelerate")
    trainer.notebook.write(options.out, {name: version(name) for name in names})


if __name__ == "__main__":
    main()
