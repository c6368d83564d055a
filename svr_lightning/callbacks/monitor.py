"""Images of each validation, in TensorBoard and Weights & Biases."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from svr_lightning.analysis.results import RESULTS, SAMPLES
from svr_lightning.analysis.table import pool
from svr_lightning.report.drawing import Draw, pixels
from svr_lightning.report.figures import (
    draw_reliability,
    draw_rules,
    reliability_numbers,
    rule_numbers,
)
from svr_lightning.report.runs import Numbers, Run, read_methods


class Monitor(Callback):
    """Shows each validation of a training in its TensorBoard and W&B loggers.

    From the samples file of the validation: the reliability diagram, and accuracy over tokens under
    the policy's own rule; where every turn is recorded, under all other stopping rules too.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the validation, on one rank; not one that checks sanity."""
        loggers = [
            one for one in trainer.loggers if isinstance(one, TensorBoardLogger | WandbLogger)
        ]
        if trainer.sanity_checking or not trainer.is_global_zero or not loggers:
            return
        folder = Path(trainer.default_root_dir) / "eval" / pl_module.validation_name
        if not (folder / RESULTS).is_file():  # no validation data, or none with references
            return
        (method,) = read_methods([str(folder / SAMPLES)])
        for name, draw, numbers in _pictures(method.runs[0]):
            name, image = f"validation/{name}", pixels(draw, numbers)
            for logger in loggers:
                if isinstance(logger, WandbLogger):
                    logger.log_image(name, [image], trainer.global_step)
                else:
                    logger.experiment.add_image(name, image, trainer.global_step, dataformats="HWC")


def _pictures(run: Run) -> list[tuple[str, Draw, Numbers]]:
    pictures: list[tuple[str, Draw, Numbers]] = []
    for part, tables in run.parts.items():
        where = f"/{part}" if len(run.parts) > 1 else ""
        if run.rule is not None:
            numbers = rule_numbers(run, pool(tables))
            pictures.append((f"accuracy_over_tokens{where}", draw_rules, numbers))
        if run.self_checks:
            numbers = reliability_numbers(pool(tables))
            pictures.append((f"reliability{where}", draw_reliability, numbers))
    return pictures
