"""SVR in TRL: :class:`GRPOTrainer` samples, compares and updates; this package does the rest.

::

    rollouts = SVRRollouts(problems, SVR(horizon=3))
    trainer = GRPOTrainer(
        model=...,
        args=GRPOConfig(loss_type="grpo", reward_weights=rollouts.reward_weights, ...),
        train_dataset=rollouts.dataset,
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
"""

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, FinishReason, Message, Problem, Trajectory
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.errors import require
from svr_lightning.recipes.base import rewards_of
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks.grading import score_turns
from svr_lightning.training.policy import stop_token_ids
from svr_lightning.training.serving import PolicyEngine

PromptKey = tuple[tuple[str, str], ...]


class SVRRollouts:
    """TRL's ``rollout_func``, with the matching reward functions and data set.

    A trajectory has ``recipe.horizon`` turns. As in SVR, the last one is trained, with the mean
    reward of all turns, which TRL compares with those of the problem's other trajectories. TRL
    takes one sequence per trajectory, and each turn has a prompt of its own.

    The rest of ``recipe`` that counts here are its prompts and rewards; loss, group size, sampling
    and optimizer are those of TRL's arguments, where the paper's are ``loss_type="grpo"`` and
    ``scale_rewards="group"``. Degenerate groups are not replaced.

    Args:
        problems: to train on; their prompts differ.
        recipe: horizon, prompts and rewards.
        max_prompt_tokens: longest prompt; longer ones are cut as in this package's own training.
        engine: samples instead of TRL, from the model that trains, with a seed for each draw.

    Raises:
        ConfigError: if two problems have the same prompt, by which TRL names them.
    """

    reward_weights = (1.0, 0.0)
    """Weights of :attr:`reward_funcs`: the second is only logged."""

    def __init__(
        self,
        problems: Sequence[Problem],
        recipe: SVR | None = None,
        *,
        max_prompt_tokens: int = 4096,
        engine: Engine | None = None,
    ) -> None:
        self.recipe = recipe or SVR()
        self._max_prompt_tokens = max_prompt_tokens
        self._engine = engine
        self._trainer: Any = None
        self._serving: PolicyEngine
        self._problems: dict[PromptKey, Problem] = {}
        for problem in problems:
            other = self._problems.setdefault(_key_of(self.recipe.dialogue.first(problem)), problem)
            require(
                other is problem,
                f"problems {other.id!r} and {problem.id!r} have the same prompt; keep one of them",
            )

    @property
    def dataset(self) -> Dataset:
        """TRL's ``train_dataset``: the prompts of first turns."""
        first = self.recipe.dialogue.first
        return Dataset.from_list([{"prompt": first(p)} for p in self._problems.values()])

    @property
    def reward_funcs(self) -> list[Callable[..., list[float]]]:
        """What TRL compares, and whether the last answer is correct, for its log."""
        return [svr_reward, last_turn_correct]

    def __call__(self, prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        """Run all turns of a trajectory for each prompt; a problem's prompt comes once for each.

        Raises:
            ConfigError: for a prompt that is none of a problem's.
        """
        renderer = Renderer(
            trainer.processing_class,
            max_prompt_tokens=self._max_prompt_tokens,
            max_model_len=self._max_prompt_tokens + trainer.max_completion_length,
            chat_template_kwargs=trainer.chat_template_kwargs,
        )
        seeds = SeedContext(run_seed=trainer.args.seed, step=trainer.state.global_step)
        jobs = self._jobs(prompts, trainer)
        serving = self._serve(trainer, renderer)
        with serving.sampling(seeds.step):
            driver = Driver(serving.engine, renderer, run_seed=seeds.run_seed, step=seeds.step)
            trajectories = driver.run(jobs)
        return self._answer(trajectories, with_logprobs=trainer.use_vllm)

    def _jobs(self, prompts: list[list[Message]], trainer: Any) -> list[Job]:
        first = trainer.accelerator.process_index * len(prompts)
        decoding = Decoding(
            max_completion_tokens=trainer.max_completion_length,
            temperature=trainer.temperature,
            top_p=trainer.top_p,
            top_k=trainer.top_k,
        )
        jobs = []
        for index, prompt in enumerate(prompts, start=first):
            problem = self._problems.get(_key_of(prompt))
            require(problem is not None, "train_dataset: a prompt belongs to no problem of these")
            assert problem is not None
            sample = index % trainer.num_generations
            program = chain(self.recipe.dialogue, problem, sample, self.recipe.horizon)
            jobs.append(Job(problem, sample, program, decoding))
        return jobs

    def _serve(self, trainer: Any, renderer: Renderer) -> PolicyEngine:
        if self._trainer is not trainer:
            self._trainer = trainer
            model = trainer.accelerator.unwrap_model(trainer.model)
            self._serving = PolicyEngine(
                model,
                self._engine or _Generation(trainer),
                stop_token_ids=stop_token_ids(model, trainer.processing_class),
                max_model_len=renderer.max_model_len,
                device_type=trainer.accelerator.device.type,
            )
        return self._serving

    def _answer(self, trajectories: list[Trajectory], with_logprobs: bool) -> dict[str, Any]:
        """What TRL expects, with a column for each reward function."""
        trained, rewards, correct = [], [], []
        for one in trajectories:
            scored = score_turns(one.problem, one.turns, self.recipe.dialogue.formats)
            earned = rewards_of(self.recipe, scored)
            trained.append(one.turns[-1].sampled)
            rewards += self.recipe.returns([earned])
            correct.append(float(scored[-1].correct))
        return {
            "prompt_ids": [list(completion.prompt_ids) for completion in trained],
            "completion_ids": [list(completion.token_ids) for completion in trained],
            "logprobs": [list(one.logprobs) for one in trained] if with_logprobs else None,
            "svr_reward": rewards,
            "last_turn_correct": correct,
        }


def svr_reward(svr_reward: list[float], **_: Any) -> list[float]:
    """The reward of each trajectory, which :class:`SVRRollouts` has computed."""
    return svr_reward


def last_turn_correct(last_turn_correct: list[float], **_: Any) -> list[float]:
    """1 where the last answer is correct."""
    return last_turn_correct


class _Generation(Engine):
    """TRL's own generation: its vLLM or transformers, one batch for all that wait.

    Sampling settings are TRL's arguments, from which those of the requests were taken; it has no
    seed for a single draw.
    """

    reads_tokens, dtype = True, None

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._waiting: list[Request] = []
        self._stop_ids: frozenset[int] = frozenset()
        self.version, self.max_batch = -1, 2**31

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        self._stop_ids = frozenset(stop_token_ids)

    def sync(self, model: Any, version: int) -> None:
        self.version = version  # TRL hands its weights on itself

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def cancel(self) -> None:
        self._waiting.clear()

    def step(self) -> list[Output]:
        requests, self._waiting = self._waiting, []
        prompts = [list(request.prompt_ids) for request in requests]
        completions, logprobs = self._trainer._generate_single_turn(prompts, None, {}, 1)
        ends = (FinishReason.LENGTH, FinishReason.STOP)
        return [
            Output(
                id=request.id,
                token_ids=tuple(ids),
                logprobs=tuple(logprobs[row]) if logprobs else (),
                finish_reason=ends[bool(ids) and ids[-1] in self._stop_ids],
                version=self.version,
            )
            for row, (request, ids) in enumerate(zip(requests, completions, strict=True))
        ]


def _key_of(messages: Sequence[Message]) -> PromptKey:
    """Messages as TRL's data sets keep them, whatever other keys those add."""
    return tuple((message["role"], message["content"]) for message in messages)
