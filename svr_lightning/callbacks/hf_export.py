"""The trained policy as a folder that ``from_pretrained`` loads."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from svr_lightning.training.export import export_policy


class HFExport(Callback):
    """Writes ``policy/`` at the end of ``fit``: weights in fp32, tokenizer, chat template, card."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Export, on one rank; not the trial of a ``fast_dev_run``."""
        if trainer.is_global_zero and not trainer.interrupted and not trainer.fast_dev_run:
            export_policy(pl_module, Path(trainer.default_root_dir))
