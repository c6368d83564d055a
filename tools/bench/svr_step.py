"""svr_lightning's side of ``tools.bench.step``: a plain fit, its optimizer steps noted.

python -m tools.bench.svr_step --turns 3 --steps 12 --out steps.json
"""

import time
from importlib.metadata import version
from typing import Any

from lightning.pytorch import Callback, seed_everything

from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.training.config import (
    OptimizerConfig,
    PolicyConfig,
    ReferenceConfig,
    SamplingConfig,
)
from svr_lightning.training.module import SVRModule
from svr_lightning.training.trainer import SVRTrainer
from tools.bench.step_workload import (
    BETAS,
    GRADIENT_CLIP,
    GROUP,
    LEARNING_RATE,
    MAX_TOKENS,
    POLICY,
    PROBLEMS,
    TEMPERATURE,
    WEIGHT_DECAY,
    Notebook,
    arguments,
    data_module,
    recipe,
)


class Unstoppable(TransformersEngine):
    """The engine without stop tokens: every completion reaches its limit."""

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Forget the stop tokens."""
        super().start(model, (), max_model_len)


class Noting(Callback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook, micro_batches: int) -> None:
        self.notebook = notebook
        self._micro_batches = micro_batches
        self._began = 0.0

    def on_train_start(self, *_: Any) -> None:
        """The first rollout follows."""
        self._began = time.perf_counter()

    def on_train_batch_start(
        self, trainer: Any, module: SVRModule, batch: Any, batch_idx: int
    ) -> None:
        """Where this is a rollout's first micro-batch, the rollout is just over: count it."""
        if batch_idx % self._micro_batches:
            return
        self.notebook.rollout = time.perf_counter() - self._began
        for group in module.groups:
            for trajectory in group.trajectories:
                completions = [turn.completion for turn in trajectory.turns]
                self.notebook.prompt_tokens += sum(len(c.prompt_ids) for c in completions)
                self.notebook.generated_tokens += sum(len(c.token_ids) for c in completions)
                self.notebook.trained_tokens += len(completions[-1].token_ids)

    def on_train_batch_end(
        self, trainer: Any, module: SVRModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a rollout's last micro-batch the optimizer has stepped."""
        if (batch_idx + 1) % self._micro_batches:
            return
        self.notebook.end_step()
        self._began = time.perf_counter()


def main() -> None:
    """Fit and write."""
    options = arguments(__doc__).parse_args()
    seed_everything(options.seed, verbose=False)
    notebook = Notebook()
    engine = Unstoppable if options.full_length else TransformersEngine
    module = SVRModule(
        policy=PolicyConfig(path=POLICY, max_prompt_tokens=512, max_model_len=1024),
        recipe=recipe(options.turns),
        sampling=SamplingConfig(temperature=TEMPERATURE, max_completion_tokens=MAX_TOKENS),
        optimizer=OptimizerConfig(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, betas=BETAS),
        reference=ReferenceConfig(every=0),
        engine=engine(max_batch=128),
        resample="off",
        micro_batch_size=PROBLEMS * GROUP // options.micro_batches,
        seed=options.seed,
    )
    trainer = SVRTrainer(
        default_root_dir=str(options.out.parent),
        accelerator="cpu",
        devices=1,
        max_steps=options.steps,
        gradient_clip_val=GRADIENT_CLIP,
        logger=False,
        callbacks=[Noting(notebook, options.micro_batches)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data_module(options.seed))
    names = ("svr-lightning", "torch", "transformers", "lightning")
    notebook.write(options.out, {name: version(name) for name in names})


if __name__ == "__main__":
    main()
