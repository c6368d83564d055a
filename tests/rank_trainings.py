"""Small trainings on several processes: ``python -m tests.rank_trainings FOLDER`` is one part.

Started with the environment of a distributed process, it runs every training below and leaves
what its rank saw in ``FOLDER/<rank>.pt``.
"""

import csv
import os
import signal
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from svr_lightning.core.types import Decoding
from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm_process import process_named
from svr_lightning.policy.config import LoRAConfig
from svr_lightning.training.config import EvaluationConfig, OptimizerConfig, ReferenceConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.distributed import SVRDeepSpeedStrategy
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import SVRModule
from tests import forked, small_fit, tolerance
from tests.commands import logged

LR = 1e-3
LORA = LoRAConfig(r=4, alpha=8)
MOST_TOKENS = (512 + 24, 8 * 24)
"""Of the longest sequence with its prompt, and of all completions of a step."""
CLIP = 0.05
"""Below every gradient norm of these trainings, and above a quarter of it."""

Seen = dict[str, Any]


def train(
    folder: Path,
    *callbacks: Callback,
    strategy: Any = "auto",
    devices: int = 1,
    accumulate: int = 1,
    updates: int = 1,
    steps: int = 3,
    precision: Any = "32-true",
    resume: str | None = None,
    engine: Engine | None = None,
    lora: LoRAConfig | None = None,
) -> Seen:
    """Train the embedded policy for some steps on the same four problems per step.

    Returns:
        ``weights`` and ``reference`` at the end, ``norms`` and ``lines`` of ``metrics.csv``,
        ``rollouts`` of this process: problem, sample, turn -> token ids, in the first step. Of
        one process also ``sizes`` of its gradients, and their ``rounding`` where these are 1.
        ``held`` names the parameters that still have a gradient.
    """
    model = make_model(updates, 8 // devices // accumulate, lora)
    model.engine = engine
    first = FirstRollout()
    trainer = small_fit.trainer(
        folder,
        first,
        *callbacks,
        devices=devices,
        strategy=strategy,
        precision=precision,
        max_steps=steps,
        max_epochs=-1,
        logger=CSVLog(folder),
    )
    trainer.fit(model, make_data(), ckpt_path=resume)
    seen = {"rollouts": first.rollouts, "folder": folder}
    seen["weights"] = deepcopy(model.policy.state_dict())
    if lora is None:
        seen["reference"] = deepcopy(model.reference.state_dict())
    seen["held"] = [k for k, p in model.policy.named_parameters() if p.grad is not None]
    if trainer.is_global_zero:
        with (folder / "metrics.csv").open(newline="") as stream:
            seen["lines"] = list(csv.reader(stream))[1:]
        seen["norms"] = [*logged(folder)["train/grad_norm"].values()]
    if devices == 1:
        trained = {k: p for k, p in model.policy.named_parameters() if p.requires_grad}
        seen["sizes"] = tolerance.root_mean_squares(trainer.optimizers[0], trained, steps)
        one = {"": torch.ones(1)}
        seen["rounding"] = tolerance.of_gradients(model.policy, *MOST_TOKENS, one)
    return seen


def make_model(
    updates: int = 1, micro_batch_size: int = 8, lora: LoRAConfig | None = None
) -> SVRModule:
    """The embedded policy, whose reference drifts at every other step, but not with adapters."""
    return small_fit.module(
        policy=small_fit.policy(lora=lora),
        recipe=small_fit.recipe(group_size=2),
        sampling=Decoding(max_completion_tokens=24),
        optimizer=OptimizerConfig(lr=LR, gradient_clip_val=CLIP),
        reference=ReferenceConfig(mix=0.6, every=0 if lora else 2),
        evaluation=EvaluationConfig(max_turns=1, max_completion_tokens=8),
        updates_per_rollout=updates,
        micro_batch_size=micro_batch_size,
    )


def make_data() -> SVRDataModule:
    """Four problems per step, and three to validate on when asked to."""
    return small_fit.data(train=small_fit.tiny("toy", limit=16), problems_per_step=4)


class FirstRollout(Callback):
    """Notes what the first step sampled."""

    def __init__(self) -> None:
        self.rollouts = {}

    def on_train_batch_start(self, trainer: Any, _: Any, batch: Any, index: int) -> None:
        if trainer.global_step == 0:
            for group in batch.groups:
                for trajectory in group.trajectories:
                    for turn in trajectory.turns:
                        key = (group.problem.id, trajectory.sample, turn.index)
                        self.rollouts[key] = turn.completion.token_ids


class Masters(Callback):
    """Notes what DeepSpeed trains on."""

    def __init__(self) -> None:
        self.seen = {}

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        optimizer = trainer.strategy.deepspeed_engine.optimizer
        masters = torch.cat([part.detach() for part in optimizer.single_partition_of_fp32_groups])
        self.seen = {
            "masters": masters.clone(),
            "moments": [s["exp_avg"].dtype for s in optimizer.state.values()],
            "types": {p.dtype for p in pl_module.policy.parameters()},
            "reference_types": {p.dtype for p in pl_module.reference.parameters()},
            "frequencies": pl_module.policy.model.rotary_emb.inv_freq.clone(),
        }


def everything(trainer: Any, module: SVRModule) -> Seen:
    """What an optimizer step changes, of this process."""
    zero = trainer.strategy.deepspeed_engine.optimizer
    return {
        "weights": deepcopy(module.state_dict()),
        "masters": [part.detach().clone() for part in zero.single_partition_of_fp32_groups],
        "moments": [s["exp_avg"].clone() for s in zero.state.values()],
        "schedule": trainer.lr_scheduler_configs[0].scheduler.last_epoch,
        "step": trainer.global_step,
    }


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
LAUNCHERS = (*VARIABLES, "NODE_RANK")
SECOND_GPU = 2
"""The first one that ``trainer.devices: [2, 3]`` uses."""


class Placed(TransformersEngine):
    """Notes what vLLM would read of its process, before, within and after its start."""

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        def read() -> dict[str, str | None]:
            return {name: os.environ.get(name) for name in VARIABLES}

        self.read = [read()]
        with process_named(SECOND_GPU + torch.distributed.get_rank()):
            self.read.append(read())
        self.read.append(read())
        super().start(model, stop_token_ids, max_model_len)


def ddp_under_slurm(folder: Path) -> Seen:
    """DDP as tasks of one SLURM node, which sets none of the variables of other launchers."""
    ours = {name: os.environ.pop(name) for name in LAUNCHERS}
    slurm = forked.slurm(int(ours["RANK"]), 2)
    os.environ |= slurm
    engine = Placed()
    seen = train(folder, strategy="ddp", devices=2, engine=engine)
    for name in slurm:
        os.environ.pop(name)
    os.environ |= ours
    return seen | {"environment": engine.read}


def zero2() -> SVRDeepSpeedStrategy:
    """Buckets small enough for several of them."""
    strategy = SVRDeepSpeedStrategy()
    sizes = ("allgather_bucket_size", "reduce_bucket_size")
    strategy.config["zero_optimization"] |= dict.fromkeys(sizes, 100_000)
    return strategy


def ddp_and_zero2(folder: Path) -> Seen:
    """The same three steps in several ways."""
    return {
        "ddp": ddp_under_slurm(folder / "ddp"),
        "ddp cut": train(
            folder / "ddp_cut",
            small_fit.saver(),
            small_fit.StopAt(2),
            strategy="ddp",
            devices=2,
            accumulate=4,
        ),
        "zero2 accumulated": train(folder / "zero4", strategy=zero2(), devices=2, accumulate=4),
    }


def adapters(folder: Path) -> Seen:
    """Adapters in the place of all weights."""
    return {"adapters": train(folder / "adapters", strategy="ddp", devices=2, lora=LORA)}


def resumed(folder: Path) -> Seen:
    """ZeRO-2 from a checkpoint after the reference has drifted, two updates to a rollout; then
    judged."""
    options = {"devices": 2, "steps": 4, "accumulate": 2, "updates": 2}
    whole = train(folder / "whole", strategy=zero2(), **options)

    train(folder / "cut", small_fit.saver(), small_fit.StopAt(2), strategy=zero2(), **options)
    again = train(folder / "cut", small_fit.saver(), strategy=zero2(), resume="last", **options)
    model = make_model()
    whole_set = {"limit_val_batches": 1.0}
    trainer = small_fit.trainer(folder / "validated", devices=2, strategy=zero2(), **whole_set)
    path = folder / "cut" / "checkpoints" / "last.ckpt"
    trainer.validate(model, make_data(), ckpt_path=str(path), verbose=False)
    validated = {"weights": model.policy.state_dict(), "reference": model.reference}
    return {"whole": whole, "resumed": again, "validated": validated}


def bf16(folder: Path) -> Seen:
    """Two steps with bf16 weights."""
    masters = Masters()
    seen = train(
        folder / "bf16", masters, strategy=zero2(), devices=2, steps=2, precision="bf16-true"
    )
    return {"bf16": seen | masters.seen}


def infinite(folder: Path) -> Seen:
    """A gradient of the second step that is not finite on one of the ranks."""

    def fault(module, batch):
        if module.global_rank == 1:
            small_fit.infinite_gradient(module, batch)

    strike = small_fit.Strike(fault, everything)
    try:
        train(folder / "infinite", strike, strategy=zero2(), devices=2, accumulate=2)
    except SystemExit as end:
        signal.alarm(0)  # this process has more to do than to leave
        cause = str(end.__cause__)
    return {"infinite": {"before": strike.before, "after": strike.after, "cause": cause}}


if __name__ == "__main__":
    root = Path(sys.argv[1])
    together = {}
    trainings = [ddp_and_zero2, resumed, bf16, infinite]
    for training in (*trainings, *([adapters] if find_spec("peft") else [])):
        together |= training(root)
    torch.save(together, root / f"{os.environ['LOCAL_RANK']}.pt")
