"""Images and texts of each validation, in TensorBoard and Weights & Biases."""

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from svr_lightning.analysis.metrics import named_metrics
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.results import RESULTS, SAMPLES, read_results
from svr_lightning.analysis.table import pool
from svr_lightning.display import excerpt, plain
from svr_lightning.report.drawing import Draw, pixels
from svr_lightning.report.figures import (
    draw_reliability,
    draw_rules,
    reliability_numbers,
    rule_numbers,
)
from svr_lightning.report.runs import Numbers, Run, read_methods
from svr_lightning.report.trajectories import trajectories

_LONGEST = 2000  # characters shown of a text


class Monitor(Callback):
    """Shows each validation of a training in its TensorBoard and W&B loggers.

    From the samples file of the validation: images of the reliability diagram and of accuracy over
    tokens under the policy's own rule, and as text the best and the worst trajectories. Where every
    turn is recorded, the second image also has all other stopping rules. The hyperparameters stand
    beside the metrics of the first validation.

    Args:
        trajectories: how many of the best and how many of the worst are shown.
    """

    def __init__(self, trajectories: int = 2) -> None:
        self.trajectories = trajectories
        self._described = False

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
        pictures = _pictures(method.runs[0])
        texts = dict(_texts(method.runs[0], self.trajectories))
        for logger in loggers:
            for name, draw, numbers in pictures:
                show_picture(logger, f"validation/{name}", draw, numbers, trainer.global_step)
            show_texts(logger, texts, trainer.global_step)
            if not self._described and isinstance(logger, TensorBoardLogger):
                # W&B has had them from the beginning.
                metrics = named_metrics("val", read_results(folder / RESULTS))
                logger.log_hyperparams(dict(logger.hparams), metrics, trainer.global_step)
        self._described = True


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


def _texts(run: Run, count: int) -> Iterable[tuple[str, str]]:
    """Trajectories as plain text: the most confident correct and the most confident wrong answers.

    Of equals, those with fewer turns.
    """

    def merit(one: SampleRecord) -> tuple[float, int]:
        stated = one.turns[one.returned_turn - 1].confidence if one.returned_turn else None
        sign = 1 if one.right else -1
        return sign * (1 + (stated or 0.0)), -one.observed

    found = sorted((record for record, _ in trajectories(run)), key=merit, reverse=True)
    for name, chosen in (("best", found[:count]), ("worst", found[::-1][:count])):
        for number, one in enumerate(chosen, start=1):
            yield f"{name}_{number}", trajectory_text(one)


def trajectory_text(record: SampleRecord) -> str:
    """A trajectory up to its stop, without control characters; the ends of long texts."""
    lines = [f"{record.dataset} / {record.id}: {'right' if record.right else 'wrong'}"]
    lines += [fill(excerpt(record.question[-_LONGEST:]), 100)]
    lines += [f"reference: {str(record.reference)[:_LONGEST]}"]
    for turn in record.turns[: record.observed]:
        check = "" if turn.verdict is None else f"{turn.verdict} {turn.confidence:.2f}, "
        label = "right" if turn.correct else "wrong"
        lines.append(f"\nturn {turn.turn}: {check}{label}, {turn.completion_tokens} tokens")
        lines.append(excerpt(turn.text[-_LONGEST:]))
    return plain("\n".join(lines))


def show_picture(
    logger: TensorBoardLogger | WandbLogger, name: str, draw: Draw, numbers: Numbers, step: int
) -> None:
    """Log a figure as an image."""
    image = pixels(draw, numbers)
    if isinstance(logger, WandbLogger):
        logger.log_image(name, [image], step)
    else:
        logger.experiment.add_image(name, image, step, dataformats="HWC")


def show_texts(logger: TensorBoardLogger | WandbLogger, texts: dict[str, str], step: int) -> None:
    """Log texts: in TensorBoard one tag each, in W&B the rows of a table."""
    if isinstance(logger, WandbLogger):
        rows = [[name, text] for name, text in texts.items()]
        logger.log_text("validation/trajectories", ["trajectory", "text"], rows, step=step)
    else:
        for name, text in texts.items():
            # TensorBoard reads Markdown, in which an indented line is text whatever it says.
            code = "\n".join(f"    {line}" for line in text.splitlines())
            logger.experiment.add_text(f"trajectories/{name}", code, step)
