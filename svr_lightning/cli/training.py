"""fit, validate, test and predict: LightningCLI with one error line instead of a page."""

import json
import logging
import warnings
from importlib import import_module
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from jsonargparse import ArgumentError, Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
    SaveConfigCallback,
)
from lightning.pytorch.utilities import rank_zero_info
from transformers.utils.logging import disable_progress_bar

from svr_lightning.analysis.results import RESULTS, SAMPLES
from svr_lightning.cli.messages import explain, of_lightning, of_parser
from svr_lightning.errors import ConfigError, require
from svr_lightning.evaluation.printing import print_results
from svr_lightning.files import to_json
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.trainer import SVRTrainer


class SaveConfig(SaveConfigCallback):
    """Leaves the resolved configuration as ``config.yaml`` at the root of the run's folder."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write it once per command, on one rank; an evaluation keeps the ``fit`` it judges."""
        path = Path(trainer.default_root_dir) / "config.yaml"
        if trainer.is_global_zero and (stage == "fit" or not path.exists()):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = self.parser.dump(self.config, skip_none=False)
            path.write_text(text, encoding="utf-8")


class SVRCommandLine(LightningCLI):
    """LightningCLI with the package's classes and one seed for everything."""

    def __init__(self, *, command: str, **kwargs: Any) -> None:
        self._command = command
        super().__init__(**kwargs)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The one command that runs: each further parser takes a second to build."""
        return {self._command: LightningCLI.subcommands()[self._command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed decides the draws of the model and the order of the data."""
        parser.link_arguments("seed_everything", "model.seed")
        parser.link_arguments("seed_everything", "data.seed")

    def before_instantiate_classes(self) -> None:
        """Leave out what a command does not need.

        Answering questions logs nothing, and would leave an empty event file each time. If a
        server has the policy, nothing here asks for devices or callbacks.
        """
        if self._command == "predict":
            self.config[self._command].trainer.logger = False
        if self._command in ("validate", "test"):
            self.config[self._command].verbose = False  # the table of results comes instead
        if self._server_has_the_policy():
            config = self.config[self._command]
            kept = {name: config.trainer[name] for name in _KEPT_FOR_A_SERVER}
            config.trainer = Namespace(**kept, accelerator="cpu", devices=1, callbacks=[])  # type: ignore[no-untyped-call]
            config.trainer.enable_model_summary = False
            config.trainer.enable_progress_bar = False
            self.save_config_callback = None

    def _server_has_the_policy(self) -> bool:
        engine = self.config[self._command].model.engine
        evaluates = self._command != "fit"  # a training with such an engine is refused
        if not evaluates or engine is None:
            return False
        module, _, name = engine.class_path.rpartition(".")
        return not getattr(import_module(module), name).reads_tokens

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Say what is wrong with a configuration that is no text."""
        try:
            super().parse_arguments(parser, args)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"a file that --config names is not UTF-8 text ({error}); save it as UTF-8"
            ) from error

    def instantiate_classes(self) -> None:
        """Hand the resolved configuration to the module, which quotes it in results files."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError) as error:
            if said := explain(error):  # ours, within jsonargparse's
                raise ConfigError(said) from error
            if isinstance(error, TypeError) and "`devices`" not in str(error):
                raise
            raise ConfigError(of_lightning(error)) from error
        config = self.config[self.subcommand].as_dict()
        config.pop("config", None)
        self.model.run_config = json.loads(to_json(config))

    def before_fit(self) -> None:
        """Keep what an earlier run left: a new one would empty its logs and replace its policy."""
        self._find_best()
        root = Path(self.trainer.default_root_dir)
        if self._checkpoint_asked_for() is None:
            found = [*_checkpoints(self.trainer), *(p for p in [root / "policy"] if p.exists())]
            require(
                not found,
                f"{root} holds another run ({found[0] if found else ''}); go on with it by "
                "--ckpt_path last, or give this one a --trainer.default_root_dir of its own",
            )

    def after_fit(self) -> None:
        """Say what the run left, and what to do with it."""
        root = Path(self.trainer.default_root_dir)
        left = [("last checkpoint", path) for path in _checkpoints(self.trainer)[-1:]]
        left += [("policy", path) for path in [root / "policy"] if path.is_dir()]
        for name, path in left:
            rank_zero_info(f"{name}: {path}")
        judged = root / "eval" / "after"
        if (judged / RESULTS).is_file():
            out = f"--out {root / 'report'}"
            rank_zero_info(f"next: python -m svr_lightning report {root.name}={judged} {out}")

    def before_validate(self) -> None:
        """Refuse ``--ckpt_path`` if there is no such checkpoint."""
        require(
            not self._server_has_the_policy() or self._checkpoint_asked_for() is None,
            "--ckpt_path: model.engine is a server, which has weights of its own; leave one out",
        )
        require(
            self._checkpoint_asked_for() != "last" or bool(_checkpoints(self.trainer)),
            f"--ckpt_path last: there is no checkpoint under {self.trainer.default_root_dir}; give "
            "the run's --trainer.default_root_dir, or a file",
        )
        self._find_best()

    before_test = before_validate

    def before_predict(self) -> None:
        """Keep the answers of earlier calls in folders with a number."""
        self.before_validate()
        folder = Path(self.trainer.default_root_dir) / "eval" / "predict"
        if self.trainer.is_global_zero and (folder / SAMPLES).is_file():
            names = (folder.with_name(f"predict-{number}") for number in count(1))
            kept = next(name for name in names if not name.exists())
            kept.mkdir()
            for file in (SAMPLES, RESULTS):
                if (folder / file).is_file():
                    (folder / file).rename(kept / file)

    def after_validate(self) -> None:
        """Show the results that the evaluation wrote."""
        file = Path(self.trainer.default_root_dir) / "eval" / self._command / RESULTS
        if self.trainer.is_global_zero and file.is_file() and not self.model.evaluation.votes:
            print_results(file)

    after_test = after_validate

    def after_predict(self) -> None:
        """Say where the answers are."""
        file = Path(self.trainer.default_root_dir) / "eval" / "predict" / SAMPLES
        if self.trainer.is_global_zero and file.is_file():
            print(file)

    def _checkpoint_asked_for(self) -> str | None:
        asked = self.config_init[self.subcommand].get("ckpt_path")
        return None if asked is None else str(asked)

    def _find_best(self) -> None:
        """Give Lightning the file that ``--ckpt_path best`` means: only a training knows it."""
        if self._checkpoint_asked_for() == "best":
            self.config_init[self.subcommand]["ckpt_path"] = best_checkpoint(self.trainer)

    def _parse_ckpt_path(self) -> None:
        """Configuration files and flags win over the hyperparameters in a checkpoint."""


def _checkpoints(trainer: Trainer) -> list[Path]:
    """The checkpoints that ``last`` may mean: files, or folders of a sharded strategy."""
    return [
        path
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None
        for path in sorted(
            Path(callback.dirpath).glob(
                f"{callback.CHECKPOINT_NAME_LAST}*{callback.FILE_EXTENSION}"
            )
        )
    ]


def best_checkpoint(trainer: Trainer) -> str:
    """The best checkpoint by a monitored metric, as the run's last checkpoint names it.

    Raises:
        ConfigError: if no callback monitors a metric, or there is no such checkpoint.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or callback.monitor is None:
            continue
        for last in filter(Path.exists, _checkpoints(trainer)):
            # DeepSpeed's checkpoint is a folder, with the rest beside the weights.
            file = next(iter(last.glob("checkpoint/*model_states.pt")), last)
            try:
                saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
                name = Path(saved["callbacks"][callback.state_key]["best_model_path"]).name
            except (OSError, RuntimeError, KeyError, TypeError, UnpicklingError) as error:
                raise ConfigError(
                    f"--ckpt_path best: {last} does not name the best one of "
                    f"{callback.monitor!r}; give last or a file"
                ) from error
            best = last.parent / name
            if name and best.exists():
                return str(best)
    raise ConfigError(
        f"--ckpt_path best: no checkpoint under {trainer.default_root_dir} was chosen by a "
        "ModelCheckpoint with monitor; give last or a file"
    )


_KEPT_FOR_A_SERVER = (
    "default_root_dir",
    "logger",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
)
"""What of the trainer's section counts if a server has the policy: it needs no devices here."""


def run(command: str, arguments: list[str]) -> str | None:
    """Run a training command; returns the message of a fault that the user can fix."""
    _quieten()
    # Reading the descriptions of fields doubles the time that the parser takes.
    explained = "--help-all" in arguments
    set_parsing_settings(docstring_parse_attribute_docstrings=explained)
    given = [command, *("--help" if word == "--help-all" else word for word in arguments)]
    try:
        SVRCommandLine(
            command=command,
            save_config_callback=SaveConfig,
            model_class=SVRModule,
            datamodule_class=SVRDataModule,
            trainer_class=SVRTrainer,
            auto_configure_optimizers=False,
            seed_everything_default=42,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False},
            args=given,
        )
    except (ConfigError, MisconfigurationException) as error:
        return explain(error) or str(error)
    except ArgumentError as error:
        return explain(error) or of_parser(error)
    except (OSError, ImportError, RuntimeError) as error:
        message = explain(error)
        if message is None:
            raise
        return message
    return None


def _quieten() -> None:
    """Drop advertisements, and warnings that speak of settings chosen here on purpose."""
    disable_progress_bar()
    for logger in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(logger).addFilter(lambda record: "Tip:" not in str(record.msg))
    for pattern in (
        r".*args parameter is intended.*",
        r".*does not have many workers.*",
        r".*your dataloader is not resumable.*",
        r".*Total length of .* across ranks is zero.*",
        r".*module\(s\) in eval mode.*",
        r".*Checkpoint directory.*exists and is not empty.*",
        r".*smaller than the logging interval.*",
        r".*recommended to use .*sync_dist=True.*",
        r".*isinstance\(treespec, LeafSpec\).*",
    ):
        warnings.filterwarnings("ignore", message=pattern)
