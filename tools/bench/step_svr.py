"""svr_lightning's side of the benchmark ``step``: a plain fit, its optimizer steps noted."""

from contextlib import ExitStack
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
from tools.bench import step
from tools.bench.step import Notebook
from tools.bench.workloads import EMBEDDED, SIZES, TEMPERATURE


class Noting(Callback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self._rollout = ExitStack()

    def on_train_start(self, *_: Any) -> None:
        """The first rollout follows."""
        self._rollout.enter_context(self.notebook.rolling_out())

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """The rollout has just ended."""
        self._rollout.close()
        now = self.notebook.now
        for trajectory in (one for group in module.groups for one in group.trajectories):
            completions = [turn.sampled for turn in trajectory.turns]
            now.prompt_tokens += sum(len(c.prompt_ids) for c in completions)
            now.generated_tokens += sum(len(c.token_ids) for c in completions)
            now.trained_tokens += len(completions[-1].token_ids)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The optimizer has stepped."""
        self.notebook.end_step()
        self._rollout.enter_context(self.notebook.rolling_out())


def main() -> None:
    """Fit and write."""
    options = step.side_options(__doc__)
    seed_everything(options.seed, verbose=False)
    notebook = Notebook()
    module = SVRModule(
        policy=PolicyConfig(path=EMBEDDED, **SIZES),
        recipe=step.recipe(),
        sampling=SamplingConfig(temperature=TEMPERATURE, max_completion_tokens=step.MAX_TOKENS),
        optimizer=OptimizerConfig(
            lr=step.LEARNING_RATE,
            weight_decay=step.WEIGHT_DECAY,
            betas=step.BETAS,
            gradient_clip_val=step.GRADIENT_CLIP,
        ),
        reference=ReferenceConfig(every=0),
        engine=TransformersEngine(max_batch=128),
        resample="off",
        seed=options.seed,
        micro_batch_size=step.PROBLEMS * step.GROUP // options.micro_batches,
    )
    trainer = SVRTrainer(
        default_root_dir=str(options.out.parent),
        accelerator="cpu",
        devices=1,
        max_steps=options.steps,
        logger=False,
        callbacks=[Noting(notebook)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=step.data_module(options.seed))
    names = ("svr-lightning", "torch", "transformers", "lightning")
    notebook.write(options.out, {name: version(name) for name in names})


if __name__ == "__main__":
    main()
