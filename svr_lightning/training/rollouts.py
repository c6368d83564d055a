"""The engine that serves the policy, and the rollouts of a training on it."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.profiler import record_function

from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.sharded import own_part
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Problem, Sample
from svr_lightning.display import plain
from svr_lightning.engines.base import Engine
from svr_lightning.engines.lora import acting_weights
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.recipes.base import Group
from svr_lightning.rollout.collect import collect_rollout
from svr_lightning.training.canary import rounding_floor
from svr_lightning.training.config import check_weighing
from svr_lightning.training.gathering import gather_lists
from svr_lightning.training.internals import no_torch_function_modes
from svr_lightning.training.logs import rollout_stats, seconds_now
from svr_lightning.training.packing import can_pack
from svr_lightning.training.policy import probe
from svr_lightning.training.update import (
    TrainBatch,
    batch_of,
    completion_logprobs,
    dummy_sample,
    micro_batches,
    samples_of,
)

PATIENCE = 5
"""Steps without any change after which a warning is given."""


def choose_engine(device_type: str) -> tuple[Engine, str]:
    """The default engine, and why it was chosen, in a few words.

    Args:
        device_type: where the policy trains, ``cuda`` or ``cpu``.

    Raises:
        ConfigError: if the vLLM that would be chosen is of a release that is not supported.
    """
    if device_type != "cuda":
        return TransformersEngine(), "transformers, since the policy is not on a GPU"
    if find_spec("vllm") is None:
        return TransformersEngine(), "transformers, since vLLM is not installed; it is slower"
    return VLLMEngine(), "vLLM, in the training process"


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Outside of every ambient mode: default device and dtype, autocast, inference mode.

    Lightning loads models under a default device and dtype, and validates under autocast and
    inference mode. They would apply to tensors that an engine creates.
    """
    with ExitStack() as modes:
        modes.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        modes.enter_context(no_torch_function_modes())
        modes.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield


class PolicyEngine:
    """Keeps the current weights of one policy in one engine.

    Args:
        policy: a transformers causal language model.
        engine: what samples; None chooses by device.
        stop_token_ids: what ends a completion.
        max_model_len: longest prompt and completion together, in tokens.
        device_type: where the policy trains.
        trajectories: of one rollout on this engine; None where nothing trains.
    """

    def __init__(
        self,
        policy: Any,
        engine: Engine | None,
        *,
        stop_token_ids: tuple[int, ...],
        max_model_len: int,
        device_type: str,
        trajectories: int | None = None,
    ) -> None:
        if engine is None:
            engine, why = choose_engine(device_type)
            rank_zero_info(f"engine: {why}")
        engine.trajectories = trajectories
        with plain_tensors():
            engine.start(policy, stop_token_ids, max_model_len)
        self.engine = engine
        self._policy, self._device_type = policy, device_type
        self._replaced = True
        self._watched: list[Tensor] = []
        self._still = 0

    def weights_replaced(self) -> None:
        """The policy's weights changed without an optimizer step."""
        self._replaced = True

    @contextmanager
    def sampling(self, version: int) -> Iterator[float | None]:
        """The policy in eval mode, the engine awake and with its weights of ``version`` steps.

        Yields the seconds that a sync took; None if the engine had these weights.
        """
        seconds, training = None, self._policy.training
        self._policy.eval()
        with plain_tensors(), torch.no_grad():
            try:
                if self._replaced or self.engine.version != version:
                    started = seconds_now(self._device_type)
                    with record_function("sync"):
                        self.engine.sync(self._policy, version)
                    self._replaced = False
                    seconds = seconds_now(self._device_type) - started
                yield seconds
            finally:
                self.engine.sleep()
                self._policy.train(training)

    def start_watching(self) -> None:
        """Remember the current weights, to compare with those after the next optimizer step."""
        self._watched = self._served_sample()

    def changed_share(self) -> float:
        """The share of the served weights that the last optimizer step changed, in [0, 1].

        A learning rate of 4e-8 changes an fp32 weight by far less than bf16 can represent, so many
        steps may pass before a weight served in bf16 changes. Several steps in a row without any
        change give a warning.
        """
        now = self._served_sample()
        pairs = zip(now, self._watched, strict=True)
        changed = sum(int((new != old).sum()) for new, old in pairs)
        self._watched = now
        self._still = 0 if changed else self._still + 1
        if self._still == PATIENCE:
            rank_zero_warn(
                f"no weight that the engine serves has changed over {PATIENCE} optimizer steps: "
                f"model.optimizer.lr is too small for {str(self.engine.dtype).split('.')[-1]}"
            )
        return changed / max(sum(weights.numel() for weights in now), 1)

    def _served_sample(self) -> list[Tensor]:
        """A probe of each trained weight's part here, adapters merged, in the engine's type."""
        weights = acting_weights(self._policy, read=own_part)
        trained = (weight for weight in weights if weight.trains)
        return [probe(weight.read()).to(self.engine.dtype, copy=True) for weight in trained]


class MeteredEngine:
    """Counts the work of an engine that is started and synced."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._running = 0
        self._preempted = engine.preemptions
        self.steps = 0
        self.tokens = 0
        """Sampled tokens of completions that have ended."""
        self._filled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Any) -> None:
        """Start or queue a request."""
        self._engine.submit(request)
        self._running += 1

    def step(self) -> Any:
        """Work on all requests."""
        self.steps += 1
        self._filled += min(self._running, self._engine.max_batch)
        outputs = self._engine.step()
        self._running -= len(outputs)
        self.tokens += sum(len(output.token_ids) for output in outputs)
        return outputs

    def stats(self, seconds: float) -> dict[str, float]:
        """The logged values for ``seconds`` of this engine's work."""
        stats = {
            "speed/rollout": self.tokens / seconds,
            "engine/steps": float(self.steps),
            "engine/batch_fill": self._filled / max(self.steps * self._engine.max_batch, 1),
        }
        if self._preempted is not None:
            stats["engine/preemptions"] = float(self._engine.preemptions - self._preempted)
        return stats


def seconds_until(wait: Callable[[], object]) -> float:
    """How long ``wait`` takes."""
    started = time.perf_counter()
    wait()
    return time.perf_counter() - started


class ModuleRollouts:
    """Rolls out a module's training problems and makes micro-batches of them.

    ``module`` is an :class:`SVRModule` with a policy in this process; its file imports this one.
    """

    def __init__(self, module: Any) -> None:
        check_weighing(module.recipe, module.sampling, module.updates_per_rollout)
        self._module = module
        self._prompt_shown = False

    def collect(
        self, problems: list[Problem]
    ) -> tuple[list[TrainBatch], list[Group], dict[str, float]]:
        """One batch, sampled by the current weights.

        Returns:
            The micro-batches of its optimizer steps, the groups that this process trains on, and
            what is logged of them.
        """
        module = self._module
        module.trace.begin(module.global_step + 1)
        started = time.perf_counter()
        self._show_prompt(problems)
        self._name_too_long(problems)
        groups, engine, sync_seconds = self._roll_out(problems)
        # The processes of one engine all rolled out the same groups; each trains on its share.
        own = len(groups) // module.ranks_per_engine
        first = module.global_rank % module.ranks_per_engine * own
        groups = groups[first : first + own]
        samples = samples_of(groups, module.recipe.samples_per_problem)
        stats = rollout_stats(groups, module.recipe.stop_policy(1, Confident())[1])
        stats["time/rollout"] = time.perf_counter() - started
        stats |= engine.stats(stats["time/rollout"])
        if sync_seconds is not None:
            stats["time/sync"] = sync_seconds
        if module.trainer.world_size > 1:
            stats["time/wait"] = seconds_until(module.trainer.strategy.barrier)
        judged = [s for s in samples if s is not None]
        if module.sampling.top_p == 1:  # else it cut the distribution
            # Every process computes it, since sharded weights are gathered from all of them.
            stats["engine/logprob_floor"] = self._floor(judged or [dummy_sample(groups)])
        return self._batches(samples, groups), groups, stats

    def _roll_out(self, problems: list[Problem]) -> tuple[list[Group], MeteredEngine, float | None]:
        """The groups of one engine, what it did, and the seconds of a sync if there was one."""
        module = self._module
        # Of all processes if single groups are replaced; whole batches are drawn from all problems.
        top_up = module.resample == "top_up"
        batch = frozenset(gather_lists([problem.id for problem in problems]) if top_up else [])
        engine: Any = MeteredEngine(module.serving.engine)
        with (
            module.serving.sampling(module.global_step) as sync_seconds,
            module.trainer.profiler.profile("rollout"),
            record_function("rollout"),
        ):
            groups = collect_rollout(
                engine,
                module.recipe,
                problems,
                renderer=module.renderer,
                sampling=module.sampling.decoding(),
                seed=module.seed,
                step=module.global_step,
                resample=module.resample,
                fresh=partial(self._fresh_problems, batch),
                show_progress=module.global_rank == 0,
            )
        return groups, engine, sync_seconds

    def _batches(
        self, samples: Sequence[Sample | None], groups: Sequence[Group]
    ) -> list[TrainBatch]:
        """The micro-batches of the optimizer steps that share this rollout."""
        module = self._module
        batches = micro_batches(
            samples,
            accumulate=int(module.trainer.accumulate_grad_batches),
            updates=module.updates_per_rollout,
            version=module.global_step,
            loss_tokens=module.renderer.loss_tokens,
            dummy_sample=dummy_sample(groups),
            packed=can_pack(module.policy),
        )
        return [self._with_old_logprobs(batch) for batch in batches]

    def _with_old_logprobs(self, batch: TrainBatch) -> TrainBatch:
        """If several updates share a rollout, store the log-probabilities that ratios start from.

        The engine's log-probabilities are unsuitable: their rounding can exceed the clip range.
        """
        module = self._module
        if module.updates_per_rollout == 1:
            return batch
        with module.trainer.precision_plugin.train_step_context():
            here = batch.to(module.device)
            old = completion_logprobs(module.policy, here, module.sampling.temperature)
        return replace(batch, old_logprobs=old.to(batch.logprobs.device))

    def _floor(self, samples: Sequence[Sample]) -> float:
        """The part of the engine's difference that rounding explains, on one completion."""
        module = self._module
        seed = derive_seed(
            module.seed, step=module.global_step, problem_id="", purpose="rounding floor"
        )
        drawn = batch_of([samples[seed % len(samples)]], 1.0, module.renderer.loss_tokens)
        with module.trainer.precision_plugin.train_step_context():
            return rounding_floor(
                module.policy,
                drawn.to(module.device),
                module.sampling.temperature,
                served=module.serving.engine.dtype,
                seed=seed,
            )

    def _fresh_problems(
        self, batch: frozenset[str], draw: int, count: int, exclude: frozenset[str]
    ) -> list[Problem]:
        """This process's stride of a draw, which is equal on all, without problems of ``batch``."""
        module = self._module
        seed = derive_seed(
            module.seed, step=module.global_step, problem_id="", attempt=draw, purpose="resample"
        )
        data: Any = module.trainer.datamodule
        part, parts = data.place
        drawn = data.fresh_problems(seed, (count + len(exclude)) * parts, batch)
        fresh = [problem for problem in drawn[part::parts] if problem.id not in exclude][:count]
        self._name_too_long(fresh)
        return fresh

    def _show_prompt(self, problems: Sequence[Problem]) -> None:
        """Print the first prompt of a run as rendered."""
        if not self._prompt_shown:
            module = self._module
            text = module.renderer.text(module.recipe.dialogue.first(problems[0]))
            rank_zero_info(f"first rendered prompt:\n{plain(text)}")
            self._prompt_shown = True

    def _name_too_long(self, problems: Sequence[Problem]) -> None:
        """Name problems that do not fit a prompt; each process knows only its own."""
        renderer, dialogue = self._module.renderer, self._module.recipe.dialogue
        unfit = [p.id for p in problems if not renderer.fits(dialogue.first(p))]
        if unfit:
            warnings.warn(
                f"training problems {', '.join(unfit)} do not fit model.policy.max_prompt_tokens="
                f"{renderer.max_prompt_tokens}; the left of their text is cut",
                stacklevel=2,
            )
