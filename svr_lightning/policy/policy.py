"""One policy: weights, tokenizer, adapter, and the engine that samples from it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily
from transformers import GenerationConfig

from svr_lightning.core.evidence import scores_of_reply
from svr_lightning.engines.acting_weights import acting_weights, base_of, is_adapted
from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.policy import lora
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.kernels import use_kernels
from svr_lightning.policy.loading import read_policy
from svr_lightning.policy.logprobs import completion_logprobs
from svr_lightning.policy.weights import freeze_vision, sample_elements, weights_fingerprint
from svr_lightning.rollout.rendering import Renderer, end_of_turn

if TYPE_CHECKING:
    from svr_lightning.training.update import TrainBatch

PATIENCE = 5
"""Steps without a changed weight before a warning."""


class Policy:
    """A policy in this process: it renders prompts, samples, scores completions, and is saved.

    Args:
        model: a transformers causal language model.
        renderer: renders its prompts and reads its completions, with its tokenizer.
        config: where it came from, and which part of it trains.
    """

    engine: Engine
    """Samples from the weights, from :meth:`start` on."""

    def __init__(
        self,
        model: Any,
        renderer: Renderer,
        config: PolicyConfig = PolicyConfig(),  # noqa: B008
    ) -> None:
        self.model = model
        self.renderer = renderer
        self.scores_of = renderer.token_scores
        """Computes the probabilities of its text, from a completion and what is read of it."""
        self.config = config
        self.synced: int | None = None
        """Optimizer steps of the weights that the engine has; None if it has to get the present."""
        self._watched: list[Tensor] = []
        self._unchanged_steps = 0

    # --- from files to an engine ----------------------------------------------------------------

    @classmethod
    def load(
        cls,
        config: PolicyConfig,
        engine: Engine | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
        trains: bool = True,
    ) -> "Policy":
        """A policy that is ready: read, prepared, on its device, and served by its engine.

        Args:
            config: which policy.
            engine: samples from it; None leaves that to :meth:`start`.
            seed: of weights that are drawn at random, those of adapters too.
            device: ``cpu`` or ``cuda``.
            trains: whether it trains, for which slow kernels are refused.

        Raises:
            ConfigError: if it cannot be used.
        """
        policy = cls.read(config, seed)
        policy.prepare(device, seed, trains=trains)
        policy.model.to(device)
        if engine is not None:
            policy.start(engine)
        return policy

    @classmethod
    def read(cls, config: PolicyConfig, seed: int) -> "Policy":
        """Read its files: fp32 weights on the CPU, and the tokenizer.

        Raises:
            ConfigError: as :func:`~svr_lightning.policy.loading.read_policy` does.
        """
        model, renderer = read_policy(config, seed)
        return cls(model, renderer, config)

    def prepare(self, device: str, seed: int, *, trains: bool) -> None:
        """Select kernels for a type of ``device``, and what trains. ``seed`` draws adapters."""
        freeze_vision(self.model)
        use_kernels(self.model, device, trains=trains)
        if self.config.lora is not None:
            lora.attach(self.model, self.config.lora, seed=seed, base=self.config.path)
        if self.config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.train()  # Layers recompute in training mode only; Lightning keeps the mode.

    def start(self, engine: Engine) -> None:
        """Let ``engine`` serve the policy; it gets the weights when it first samples."""
        ends = stop_token_ids(self.model, self.renderer.tokenizer)
        with plain_tensors():
            engine.start(self.model, ends, self.renderer.max_model_len)
        self.engine = engine
        self.synced = None

    # --- its use --------------------------------------------------------------------------------

    @contextmanager
    def sampling(self, version: int) -> Iterator[float | None]:
        """The policy in eval mode, the engine awake and with its weights of ``version`` steps.

        Yields the seconds that a sync took; None if the engine had these weights.
        """
        seconds = None
        training = self.model.training
        self.model.eval()
        with plain_tensors(), torch.no_grad():
            try:
                if self.synced != version:
                    started = seconds_now()
                    self.engine.sync(self.model, version)
                    self.synced = version
                    seconds = seconds_now() - started
                yield seconds
            finally:
                if self.engine.sleep():
                    self.synced = None
                self.model.train(training)

    def logprobs(self, batch: "TrainBatch", temperature: float) -> Tensor:
        """[B, T] nats of a batch's completion tokens under the current weights."""
        return completion_logprobs(self.model, batch, temperature)

    def fingerprint(self) -> str:
        """A sha256 that tells its weights from others."""
        return weights_fingerprint(self.model.state_dict())

    def identity(self) -> dict[str, Any]:
        """What determines its completions, besides the prompt and the seed."""
        return {
            "weights": self.fingerprint(),
            "dtype": self.engine.dtype,
            "chat_template": self.renderer.tokenizer.chat_template,
        }

    def adapter_facts(self) -> dict[str, Any]:
        """What must not change for adapters: their settings, and their base model's fingerprint.

        Empty without adapters.
        """
        if self.config.lora is None:
            return {}
        base = weights_fingerprint(base_of(self.model.state_dict()))
        return {"lora": asdict(self.config.lora), "base": base}

    def export(self, folder: Path, max_new_tokens: int) -> None:
        """Write ``folder`` as ``from_pretrained`` loads it, and adapters to ``adapter`` beside it.

        Weights are fp32, with adapters merged. Generation is greedy, up to ``max_new_tokens``.
        """
        # Not the checkpoint's: its temperature and similar settings contradict greedy decoding.
        declared = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            bos_token_id=declared.bos_token_id,
            eos_token_id=[*stop_token_ids(self.model, self.renderer.tokenizer)],
            pad_token_id=declared.pad_token_id,
            do_sample=False,
            max_new_tokens=max_new_tokens,
        )
        self.model.save_pretrained(folder, state_dict=exported_weights(self.model))
        adapter = folder.with_name("adapter")
        if is_adapted(self.model):
            lora.save_adapter(self.model, adapter)
        for written in (folder, adapter):
            for weights in written.glob("*.safetensors"):  # safetensors lets only the owner read
                shutil.copymode(next(written.glob("*config.json")), weights)
        self.renderer.tokenizer.save_pretrained(folder)

    # --- does training reach the engine? --------------------------------------------------------

    def start_watching(self) -> None:
        """Remember the current weights, to compare with those after the next optimizer step."""
        self._watched = self._served_sample()

    def fraction_of_weights_changed(self) -> float:
        """The fraction of the served weights that the last optimizer step changed, in [0, 1].

        A learning rate of 4e-8 changes an fp32 weight by far less than bf16 can represent, so many
        steps may pass before a weight served in bf16 changes. Several steps in a row without any
        change give a warning.
        """
        now = self._served_sample()
        changed = 0
        for new, old in zip(now, self._watched, strict=True):
            changed += int((new != old).sum())
        self._watched = now
        self._unchanged_steps = 0 if changed else self._unchanged_steps + 1
        if self._unchanged_steps == PATIENCE:
            rank_zero_warn(
                f"no weight that the engine serves has changed over {PATIENCE} optimizer steps: "
                f"model.optimizer.lr is too small for {str(self.engine.dtype).split('.')[-1]}"
            )
        return changed / max(sum(weights.numel() for weights in now), 1)

    def _served_sample(self) -> list[Tensor]:
        """Some elements of each trained weight, adapters merged, in the engine's type."""
        return [
            sample_elements(weight.read()).to(self.engine.dtype, copy=True)
            for weight in acting_weights(self.model)
            if weight.trains
        ]


class RemotePolicy:
    """A policy behind a server: there are no weights here, and messages are its prompts.

    Args:
        engine: asks the server.
    """

    model = None
    renderer = None
    scores_of = staticmethod(scores_of_reply)

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def sampling(self, version: int) -> Iterator[None]:
        """The server serves what it has; in the end its connections are closed."""
        try:
            yield None
        finally:
            self.engine.sleep()

    def identity(self) -> dict[str, Any]:
        """What is known here of what determines its completions."""
        return {"server": getattr(self.engine, "model", None)}


def choose_engine(device_type: str) -> Engine:
    """The default engine for a policy on ``cuda`` or ``cpu``; logs which one, and why."""
    if device_type == "cuda" and find_spec("vllm") is not None:
        rank_zero_info("engine: vLLM, in the training process")
        return VLLMEngine()
    without = "vLLM is not installed" if device_type == "cuda" else "the policy is not on a GPU"
    rank_zero_info(f"engine: transformers, since {without}")
    return TransformersEngine()


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a turn: what model and tokenizer declare, and the template's own."""
    declared = getattr(model, "generation_config", None)
    eos = getattr(declared, "eos_token_id", None)
    ids = {*(eos if isinstance(eos, list | tuple) else [eos])}
    ids |= {tokenizer.eos_token_id, *end_of_turn(tokenizer).values()}
    return tuple(sorted(i for i in ids if i is not None))


def exported_weights(model: Any) -> dict[str, Tensor]:
    """The weights to export: adapters merged, in fp32, which small learning rates need."""
    acting = {weight.name: weight.read for weight in acting_weights(model)}
    exported = {}
    for key, value in base_of(model.state_dict()).items():
        name = key.replace(".base_layer.", ".")
        full = acting[name]() if name in acting else value  # a tied weight, or a buffer
        exported[name] = full.to("cpu", torch.float32)
    return exported


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Turns every ambient mode off: default device and dtype, autocast, inference mode.

    Lightning loads models under a default device and dtype, and validates under autocast and
    inference mode. They would apply to tensors that an engine creates.
    """
    with ExitStack() as modes:
        modes.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for _ in range(_len_torch_function_stack()):  # a default device is one
            modes.enter_context(_pop_mode_temporarily())
        modes.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield


def seconds_now() -> float:
    """Wall-clock seconds, after synchronizing a GPU that is in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()
