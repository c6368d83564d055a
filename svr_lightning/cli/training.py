"""The training commands: LightningCLI, with errors of one line instead of a page."""

import json
import logging
import os
import re
import warnings
from collections.abc import Container
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from shlex import quote
from typing import Any

import jsonargparse
import torch
import yaml
from jsonargparse import ArgumentError, Namespace, get_loader, set_loader, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info
from transformers.utils.logging import disable_progress_bar

from svr_lightning import recipes
from svr_lightning.analysis.results import RESULTS, SAMPLES, section
from svr_lightning.cli.messages import explain, of_parser, section_of
from svr_lightning.errors import ConfigError, did_you_mean, program, require
from svr_lightning.evaluation.printing import print_results
from svr_lightning.files import to_json, write_file
from svr_lightning.tiny import ARITHMETIC_TINY, COUNTDOWN_TINY
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.trainer import SVRTrainer


class SaveConfig(SaveConfigCallback):
    """Leaves the resolved configuration as ``config.yaml`` at the root of the run's folder."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write it for an evaluation, unless that of the evaluated training is already there."""
        if stage != "fit":
            self._write(trainer, again=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write it for a training, once its checkpoint has been accepted."""
        self._write(trainer)

    def _write(self, trainer: Trainer, again: bool = True) -> None:
        path = Path(trainer.default_root_dir) / "config.yaml"
        if trainer.is_global_zero and (again or not path.exists()):
            write_file(path, [self.parser.dump(self.config, skip_none=False)])


class Layer(jsonargparse.ActionConfigFile):  # type: ignore[name-defined,misc]
    """A configuration on top of those before it, whose data sets replace theirs.

    A training set brings its task for questions, unless one is named with it.

    jsonargparse would merge data sets key by key, so that one with a path of its own would inherit
    the split, the limits and the columns of another.
    """

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Merge a file or a text into ``cfg``."""
        file = os.path.isfile(values)
        try:
            text = Path(values).read_text(encoding="utf-8") if file else values
            content = _content(text)
            layer = _filled(content, parser.groups)
            if layer in (None, {}):
                return
            if cfg.get("trainer.callbacks") and "callbacks" in section(layer, "trainer"):
                rank_zero_info(f"{values} replaces trainer.callbacks; callbacks+ would add to them")
            data = section(layer, "data")
            for part in data.keys() & {"train", "val", "test"}:
                one_of_many = part != "train" and isinstance(data[part], dict)
                require(not one_of_many, f"data.{part} is a list; write [{{...}}]")
                cfg[f"data.{part}"] = None
                if part == "train":
                    cfg["data.questions_task"] = None
            given = values if layer == content else yaml.safe_dump(layer)
            super().__call__(parser, cfg, given, option_string)
        except (
            ArgumentError,
            LookupError,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            where = f"{values}: " if file else ""
            raise ConfigError(f"{where}{_refusal(error, parser)}") from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice, of which YAML keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping, whose keys differ."""
        keys = [key.value for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            where = f"line {node.start_mark.line + 1}"
            raise ConfigError(f"{where}: duplicate key {twice[0]!r}; merge the two sections")
        return super().construct_mapping(node, deep)


def _content(text: str) -> Any:
    """What a configuration holds; the text itself if the parser will refuse it."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a safe loader
    except yaml.YAMLError:
        return text
    except RecursionError as error:
        raise ConfigError("nested too deeply") from error


_read = get_loader("yaml")


def _value(text: str) -> Any:
    """What a flag's value holds; one with a key twice is at most a text, such as a question."""
    _content(text)
    return _read(text)


def _filled(content: Any, sections: Container[str], place: str = "") -> Any:
    """A configuration without sections that hold nothing, such as comments alone."""
    if not isinstance(content, dict):
        require(
            isinstance(content, str) or place[:-1] not in sections,
            f"{place[:-1]}: {content!r} is no section; write settings below the name",
        )
        return content
    return {
        key: _filled(value, sections, f"{place}{key}.")
        for key, value in content.items()
        if value is not None or f"{place}{key}" not in sections
    }


def _refusal(error: Exception, parser: LightningArgumentParser) -> str:
    """The parser's refusal in one line, with a known key that is close to an unknown one."""
    text = of_parser(error)
    if unknown := re.search(r"(?:ed arguments: (?=--)|not accept option ')(-*)([\w.]+)", text):
        names = parser.get_defaults().keys()
        text += did_you_mean(unknown[1] + unknown[2], (unknown[1] + name for name in names))
    return text


for _module in iter_modules(recipes.__path__):  # so that --model.recipe Murphy is enough
    import_module(f"{recipes.__name__}.{_module.name}")

_TASK_OF_EMBEDDED = {COUNTDOWN_TINY: "countdown", ARITHMETIC_TINY: "gsm8k"}


class SVRCommandLine(LightningCLI):
    """LightningCLI with the package's classes and one seed for everything."""

    trainer: SVRTrainer

    def __init__(self, *, command: str, **kwargs: Any) -> None:
        self._command = command
        super().__init__(**kwargs)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser whose configurations are layers."""
        parser = LightningArgumentParser(**kwargs)
        about = "configuration: a name such as countdown_tiny, or a file; later ones win"
        parser.add_argument("-c", "--config", action=Layer, help=about)
        return parser

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Only the command that runs: each further parser takes a second to build."""
        known = LightningCLI.subcommands()
        return {self._command: known.get(self._command, {"model", "datamodule"})}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed decides the draws of the model and the order of the data."""
        parser.link_arguments("seed_everything", "model.seed")
        parser.link_arguments("seed_everything", "data.seed")
        if self._command == "predict":
            parser.add_argument(
                "--question", action="append", help="a question; may be given several times"
            )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and raise a fault as one line."""
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            for word in args:
                _content(re.sub("^--[^=]*=?", "", word))
            raise ConfigError(_refusal(error, self._parser(self._command))) from error
        seed = self.config[self._command].seed_everything
        require(0 <= seed < 2**32, f"seed_everything={seed} must lie in [0, {2**32 - 1}]")

    def before_instantiate_classes(self) -> None:
        """Leave out what a command does not need.

        Answering questions logs nothing, and would leave an empty event file each time. If a
        server has the policy, nothing here asks for devices or callbacks. A missing GPU is refused
        before what else is missing, since the cure for it cures the rest.
        """
        config = self.config[self._command]
        if config.data.questions_task is None:
            config.data.questions_task = config.data.train.task if config.data.train else "math"
        if self._command == "predict":
            self._take_questions(config)
        if self._command in ("predict", "export", "warmstart"):
            config.trainer.logger = False
        if self._command in ("validate", "test"):
            config.verbose = False  # the table of results comes instead
        if self._server_has_the_policy():
            settings = {name: config.trainer[name] for name in _KEPT_FOR_A_SERVER}
            config.trainer = Namespace(  # type: ignore[no-untyped-call]
                **settings,
                callbacks=[],
                enable_model_summary=False,
                accelerator="cpu",
                devices=1,
            )
            self.save_config_callback = None
        if config.trainer.accelerator == "gpu" and not torch.accelerator.is_available():
            raise MisconfigurationException("No supported gpu backend found")

    def _take_questions(self, config: Namespace) -> None:
        """Make each ``--question`` an entry of ``data.questions``."""
        config.data.questions = [*(config.data.questions or []), *(config.pop("question") or [])]
        task, policy = config.data.questions_task, config.model.policy.path
        made_for = _TASK_OF_EMBEDDED.get(policy, task)
        require(
            not config.data.questions or made_for == task or self._server_has_the_policy(),
            f"model.policy.path={policy} answers {made_for}, and data.questions_task is {task}; "
            "give the --config of your policy, or its folder as --model.policy.path",
        )

    def _server_has_the_policy(self) -> bool:
        engine = self.config[self._command].model.engine
        if self._command == "fit" or engine is None:  # a training with such an engine is refused
            return False
        module, _, name = engine.class_path.rpartition(".")
        return not getattr(import_module(module), name).reads_tokens

    def instantiate_classes(self) -> None:
        """Hand the resolved configuration to the module, which quotes it in results files."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError) as error:
            place = section_of(error, self.config[self.subcommand])
            raise ConfigError(place + of_parser(error)) from error
        config = self.config[self.subcommand].as_dict()
        config.pop("config", None)
        self.model.run_config = json.loads(to_json(config))

    def after_fit(self) -> None:
        """Name the run's checkpoint and policy, and the next command."""
        root = Path(self.trainer.default_root_dir)
        for path in self.trainer.last_checkpoints[-1:]:
            rank_zero_info(f"last checkpoint: {path}")
        if (policy := root / "policy").is_dir():
            rank_zero_info(f"policy: {policy}")
        judged = root / "eval" / "after"
        if (judged / RESULTS).is_file():
            method = type(self.model.recipe).__name__
            rank_zero_info(
                f"next: {program()} report {quote(f'{method}={judged}')} --out "
                f"{quote(str(root / 'report'))}"
            )

    def before_validate(self) -> None:
        """Refuse a checkpoint that is not there, or that Lightning would look for by itself."""
        path = self.config_init[self._command].ckpt_path
        require(
            path not in ("", "best", "hpc"),
            f"--ckpt_path {path}: give a checkpoint's file, or last",
        )
        require(  # a resumable training may not have begun
            path != "last" or self._command == "fit" or bool(self.trainer.last_checkpoints),
            f"--ckpt_path last: there is no checkpoint under {self.trainer.default_root_dir}; give "
            "the run's --trainer.default_root_dir, or a file",
        )

    before_fit = before_test = before_predict = before_export = before_validate

    def after_validate(self) -> None:
        """Show the results that the evaluation wrote; without any, name the file of its samples."""
        folder = Path(self.trainer.default_root_dir) / "eval" / self._command
        if not self.trainer.is_global_zero:
            return
        if self._command != "predict" and (folder / RESULTS).is_file():
            print_results(folder / RESULTS)
        elif (folder / SAMPLES).is_file():
            print(folder / SAMPLES)

    after_test = after_predict = after_validate

    def _parse_ckpt_path(self) -> None:
        """Configuration files and flags win over the hyperparameters in a checkpoint."""


_KEPT_FOR_A_SERVER = (
    "default_root_dir",
    "enable_progress_bar",
    "limit_test_batches",
    "limit_val_batches",
    "logger",
)
"""Settings of the trainer that apply if a server has the policy: no devices are needed here."""


def run(command: str, about: str, arguments: list[str]) -> None:
    """Run a training command.

    Raises:
        ConfigError: for a fault that the user can fix.
    """
    _silence_warnings()
    # Reading the descriptions of fields doubles the time that the parser takes.
    explained = bool({"-h", "--help"} & {*arguments})
    set_parsing_settings(docstring_parse_attribute_docstrings=explained)
    set_loader("yaml", _value, (yaml.YAMLError, ConfigError))
    parsing = {"exit_on_error": False, "allow_abbrev": False}
    try:
        SVRCommandLine(
            command=command,
            save_config_callback=SaveConfig,
            model_class=SVRModule,
            datamodule_class=SVRDataModule,
            trainer_class=SVRTrainer,
            auto_configure_optimizers=False,
            seed_everything_default=42,
            parser_kwargs={
                "prog": program(),
                **parsing,
                command: {
                    "usage": f"{program()} {command} [--config NAME ...] [--KEY VALUE ...]",
                    "description": _DESCRIPTION.format(about=about),
                    **parsing,
                },
            },
            args=[command, *arguments],
        )
    except MisconfigurationException as error:
        raise ConfigError(explain(error) or str(error)) from error


_DESCRIPTION = """{about}. Every key of a configuration can be given as a flag; `fit --help` has
all of them. Besides, --record records every turn (model.evaluation.adaptive: false), so that any
stopping rule can be replayed, and --stop RULE --stop.OPTION VALUE are short for
--model.evaluation.stop."""


def _silence_warnings() -> None:
    """Drop advertisements, and warnings about settings that are chosen here."""
    if not torch.cuda.is_available():  # or DeepSpeed warns, which transformers imports to save
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    disable_progress_bar()
    for logger in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(logger).addFilter(lambda record: "Tip:" not in str(record.msg))
    for pattern in _EXPECTED:
        warnings.filterwarnings("ignore", message=pattern)


_EXPECTED = (
    ".*args parameter is intended.*",
    # Lightning advises every module with manual optimisation to save before its step.
    "Using ModelCheckpoint with manual optimization",
    ".*does not have many workers.*",
    ".*have no logger configured.*",
    ".*your dataloader is not resumable.*",
    ".*Total length of .* across ranks is zero.*",
    r".*module\(s\) in eval mode.*",
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*smaller than the logging interval.*",
    ".*recommended to use .*sync_dist=True.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    # The name that it has in all supported releases of transformers.
    "`past_key_values` is deprecated",
)
