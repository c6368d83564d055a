"""A Lightning Trainer whose fit loop turns each batch of problems into one rollout.

Only the data fetcher differs from Lightning's loop: it hands the module's training step a rollout
where the data has problems. The step is manual optimisation, so all optimizer steps of a rollout
lie between two of the loop's batches: checkpoints, validations, limits and stops come between
rollouts and are counted in them.
"""

import fcntl
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from itertools import chain, starmap
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from svr_lightning.errors import ConfigError, as_config_error, require
from svr_lightning.files import check_folder
from svr_lightning.policy.policy import RemotePolicy
from svr_lightning.training.checkpoint import DurableCheckpointIO
from svr_lightning.training.distributed import any_stops, failing_together, resolve_strategy
from svr_lightning.training.export import export_policy
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.progress import Progress
from svr_lightning.training.warmstart import PLAIN, WarmStart, WarmStartConfig


class RolloutFetcher(_DataFetcher):
    """Turns batches of problems into rollouts.

    Resuming is lazy: Lightning sets ``fetched`` after it made the iterator, so the problems that
    the checkpoint already covers are skipped when the first rollout is requested.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer

    def __next__(self) -> tuple[Any, int, int]:
        last, index = self.fetched, -1
        while index < last:
            problems, index, _ = super().__next__()
        self.fetched = index + 1
        self.done = self.fetched == self.length
        return self._rollout(problems), index, 0

    def _rollout(self, problems: Any) -> Any:
        """Roll out, and wait for the other processes.

        All of them then take the optimizer steps, or none does, since a signal has stopped one.
        """
        trainer, several = self._trainer, self._trainer.world_size > 1
        try:
            rollout = trainer.lightning_module.collect(problems)
            trainer.defers_interrupts = True
        except KeyboardInterrupt:
            if several:
                any_stops(True, trainer.strategy.root_device)
            raise
        if several:
            began = time.perf_counter()
            if any_stops(False, trainer.strategy.root_device):
                raise KeyboardInterrupt(trainer.interrupt_waits or signal.SIGTERM)
            rollout.stats["time/wait"] = time.perf_counter() - began
        return rollout


class RolloutFitLoop(_FitLoop):
    """Lightning's fit loop, whose batches are rollouts of its batches of problems."""

    trainer: Any
    resumable: dict[str, Any] | None = None
    """The loop's state after the latest rollout that was trained on; None before training."""

    def __init__(self, trainer: Trainer, stock: _FitLoop) -> None:
        super().__init__(trainer, stock.min_epochs, stock.max_epochs)
        self.epoch_loop = stock.epoch_loop

    @property
    def within_rollout(self) -> bool:
        """Whether a rollout is being trained on: not all of its optimizer steps are taken."""
        progress: Any = self.epoch_loop.batch_progress.total
        return bool(progress.ready != progress.processed)

    def run(self) -> None:
        """Train; a resumed run first repeats the validation of its checkpoint's step.

        Checkpoints are saved before that validation, and Lightning considers it done.
        """
        self.setup_data()
        fetcher, val_loop = self._data_fetcher, self.epoch_loop.val_loop
        if (
            self.restarting
            and fetcher is not None
            and self.epoch_loop._should_check_val_fx(fetcher)
        ):
            progress = val_loop.batch_progress.state_dict()
            val_loop.restarting = False
            self.trainer.validating = True
            val_loop.run()
            self.trainer.training = True
            # Lightning counts this validation itself when it continues.
            val_loop.batch_progress.load_state_dict(progress)
        super().run()

    def on_run_start(self) -> None:
        """Begin to train."""
        super().on_run_start()
        self.resumable = self.state_dict()

    def setup_data(self) -> None:
        """Wrap the fetcher of problems.

        An integer ``val_check_interval`` counts optimizer steps, rounded up to whole rollouts; a
        fraction is a share of the epoch's rollouts.
        """
        before, trainer = self._data_fetcher, self.trainer
        interval = getattr(trainer, "val_check_interval", None)  # none if it is a time
        if isinstance(interval, int):
            updates = trainer.lightning_module.updates_per_rollout
            trainer.val_check_interval = math.ceil(interval / updates)
        with as_config_error():  # a validation interval that the data cannot have
            super().setup_data()
        trainer.val_check_interval = interval
        stock = self._data_fetcher
        if stock is before or stock is None:
            return
        fetcher = RolloutFetcher(trainer)
        fetcher.setup(stock.combined_loader)
        iter(fetcher)
        self._data_fetcher = fetcher

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Add the settings that a resumed run has to share."""
        return super().on_save_checkpoint() | {"settings": self._settings()}

    def _settings(self) -> dict[str, Any]:
        """The settings that make a run what it is.

        Those of the model, except its path, what depends on the hardware, and the evaluation.
        """
        module, data = self.trainer.lightning_module, self.trainer.datamodule
        parts = {
            "data.problems_per_step": data.problems_per_step,
            "data.seed": data.seed,
            "data.train": f"sha256 {data.training_digest[:16]}",
            "model.recipe": type(module.recipe).__qualname__,
            "model.resample": module.resample,
            "model.seed": module.seed,
            "model.updates_per_rollout": module.updates_per_rollout,
            "trainer.precision": str(self.trainer.precision),
            "model.policy": module.policy_config,
            "model.recipe.init_args": module.recipe,
            "model.sampling": module.sampling,
            "model.optimizer": module.optimizer_config,
            "model.reference": module.reference_config,
        }
        leaves = chain.from_iterable(starmap(_leaves, parts.items()))
        return {name: value for name, value in leaves if name not in _FREE}

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Check that the run can resume from here.

        Raises:
            ConfigError: naming a setting that makes it another run.
        """
        super().on_load_checkpoint(state_dict)
        saved = state_dict.get("settings", {})
        changed = [
            f"{name}={now}, but the checkpoint was saved with {saved[name]}"
            for name, now in self._settings().items()
            if saved.get(name, now) != now
        ]
        require(
            not changed,
            f"{'; '.join(changed)}; resume with the saved settings, or start another run from the "
            "exported policy/ with model.policy.path",
        )

    def on_run_end(self) -> None:
        """Save ``last``."""
        for saver in self.trainer.savers:
            if saver._last_global_step_saved != self.trainer.global_step:
                saver._last_checkpoint_saved = ""  # Lightning would keep any earlier save
        super().on_run_end()


_FREE = {
    f"model.policy.{name}"
    for name in ("path", "revision", "attn_implementation", "gradient_checkpointing")
}
"""Settings that a resumed run may change: a copy of the model, and how the hardware is used."""


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a settings object, and of those within it, by their keys."""
    if is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _leaves(f"{key}.{part.name}", getattr(value, part.name))
    else:
        yield key, _plain(value)


def _plain(value: Any) -> Any:
    """A value with names for functions and objects: loading a checkpoint runs no code."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class SVRTrainer(Trainer):
    """Lightning's Trainer, with three defaults of its own.

    All files of a run are under ``default_root_dir``: ``logs/`` for TensorBoard,
    ``metrics.csv``, ``checkpoints/``. Ranks select their share of each batch themselves, so
    batches do not depend on the number of processes; each process resamples its own share.
    """

    fit_loop: RolloutFitLoop
    defers_interrupts = False
    """Whether a signal waits: from the end of a rollout until its optimizer steps are taken."""
    interrupt_waits = 0
    """One that does; the run ends after them."""

    def __init__(
        self,
        *args: Any,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        accumulate = kwargs.get("accumulate_grad_batches") or 1
        require(
            accumulate == 1,
            f"trainer.accumulate_grad_batches={accumulate}: an optimizer step accumulates as many "
            "micro-batches as it needs; set model.micro_batch_size instead",
        )
        require(
            not kwargs.get("overfit_batches"),
            "trainer.overfit_batches would give all processes the same problems; set "
            "data.train.limit instead",
        )
        root = kwargs.get("default_root_dir") or "runs/default"
        check_folder(root, f"trainer.default_root_dir={root}")
        kwargs |= {
            # Spelled out because the configuration parser takes Lightning's own limits for floats,
            # and 1.0 means everything where 1 means one batch.
            "limit_train_batches": limit_train_batches,
            "limit_val_batches": limit_val_batches,
            "limit_test_batches": limit_test_batches,
            "default_root_dir": root,
            "use_distributed_sampler": False,
            "strategy": resolve_strategy(kwargs.get("strategy", "auto")),
        }
        if kwargs.get("logger") in (None, True):
            kwargs["logger"] = [
                TensorBoardLogger(root, name="logs", version="", default_hp_metric=False),
                CSVLog(root),
            ]
        callbacks = _as_list(kwargs.get("callbacks"))
        bars = [c for c in callbacks if isinstance(c, ProgressBar)]
        if kwargs.get("enable_progress_bar") is False:
            callbacks = [c for c in callbacks if c not in bars]
        elif not bars:
            callbacks.append(Progress())
        kwargs["callbacks"] = callbacks
        kwargs["plugins"] = [*_as_list(kwargs.get("plugins")), DurableCheckpointIO()]
        super().__init__(*args, **kwargs)
        self.fit_loop = RolloutFitLoop(self, self.fit_loop)
        # Advantages and the engine's log-probabilities stay in fp32.
        self.precision_plugin.convert_input = _unchanged  # type: ignore[method-assign, assignment]
        if isinstance(self.strategy, DeepSpeedStrategy):  # casts, but not rotary frequencies
            self.precision_plugin.convert_module = _unchanged  # type: ignore[method-assign, assignment]
        for saver in self.savers:
            if saver.dirpath is None:
                saver.dirpath = str(Path(root).absolute() / "checkpoints")
            require(
                saver._train_time_interval is None,
                "ModelCheckpoint.train_time_interval would save nothing, since Lightning reads no "
                "clock in manual optimization; set every_n_train_steps instead",
            )

    @property
    def savers(self) -> list[ModelCheckpoint]:
        """The callbacks that save checkpoints."""
        return [c for c in self.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]

    @property
    def last_checkpoints(self) -> list[str]:
        """What ``last`` may mean: files, or folders of a sharded strategy."""
        return [p for saver in self.savers for p in sorted(saver._find_last_checkpoints(self))]

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the whole run; a rollout may have several."""
        if self.max_epochs == -1:
            return math.inf if self.max_steps == -1 else self.max_steps
        self.fit_loop.setup_data()
        updates: int = self.lightning_module.updates_per_rollout  # type: ignore[assignment]
        steps = self.num_training_batches * updates * max(self.max_epochs or 0, 1)
        return steps if self.max_steps == -1 else min(steps, self.max_steps)

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train.

        Args:
            model: the module.
            train_dataloaders: not read.
            val_dataloaders: not read.
            datamodule: the problems.
            ckpt_path: what to resume from: a file, or last, which begins anew in a new folder.
            weights_only: whether a checkpoint may hold plain values only; here always so.

        Raises:
            ConfigError: if the folder holds another run, or it is last and there is none.
        """
        counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
        restarted = any(os.environ.get(name, "0") != "0" for name in counts)  # after a fault
        root = Path(self.default_root_dir)
        left = [name for name in ("metrics.csv", "policy") if (root / name).exists()]
        saved = self.last_checkpoints
        found = [*saved, *(root / name for name in left if name == "policy")]
        require(  # it would overwrite logs and policy
            ckpt_path is not None or not found,
            f"{root} holds another run ({found[0] if found else ''}); resume it with "
            "--ckpt_path last, or give this one a --trainer.default_root_dir of its own",
        )
        require(
            ckpt_path != "last" or restarted or not left or bool(saved),
            f"--ckpt_path last: {root} holds another run without a checkpoint; remove its "
            f"{' and '.join(left)} to begin again in its place, or give --trainer.default_root_dir",
        )
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)

    def export(self, model: Any, datamodule: Any, ckpt_path: str | None = None) -> None:
        """Write the policy of a checkpoint to ``export/policy/``, for ``from_pretrained``.

        Args:
            model: the module that the checkpoint is of.
            datamodule: not read.
            ckpt_path: last or a file.
        """
        _require_weights(model, "svr export")
        self.limit_test_batches = 0
        self.test(model, datamodule=datamodule, ckpt_path=ckpt_path)  # loads the weights
        if self.is_global_zero:
            policy = export_policy(model, Path(self.default_root_dir) / "export")
            rank_zero_info(f"policy: {policy}")

    def warmstart(
        self,
        model: Any,
        datamodule: Any,
        start: WarmStartConfig = WarmStartConfig(),  # noqa: B008 - frozen, and the CLI shows it
    ) -> None:
        """Teach a policy the form of the recipe's turns on its own answers to ``data.train``.

        Args:
            model: the module whose policy learns.
            datamodule: its training problems are answered and learned from.
            start: how.
        """
        root = Path(self.default_root_dir)
        unfinished = any((root / PLAIN).glob(".journal*"))
        require(
            unfinished or not (root / "policy").exists(),
            f"{root} holds another run ({root / 'policy'}); give this one a "
            "--trainer.default_root_dir of its own",
        )
        require(
            self.world_size == 1,
            "a warm start runs in one process: set trainer.devices=1 and trainer.strategy=auto",
        )
        _require_weights(model, "svr warmstart")
        require(
            self.limit_train_batches == 1.0 and not isinstance(self.limit_train_batches, int),
            "svr warmstart cannot try a few batches alone: leave out trainer.fast_dev_run and "
            "trainer.limit_train_batches, and set data.train.limit and start.passes",
        )
        self.strategy.connect(model)
        model.trainer = self
        self._data_connector.attach_datamodule(model, datamodule)
        require(bool(datamodule.sources["train"]), "nothing to learn from: set data.train")
        (problems,) = datamodule.problems("train")
        model.configure_model()
        model.policy.to(self.strategy.root_device)
        with self._folder_of_its_own():
            WarmStart(model, problems, start, root).run()

    def save_checkpoint(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save, unless in a ``fast_dev_run`` or while a rollout is being trained on.

        Then the previous checkpoint stays, whatever asks for a save, such as a job's last signal.
        """
        if self.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.training and self.fit_loop.within_rollout:
            rank_zero_warn(f"not saving {filepath} in mid-rollout; resume from last.ckpt")
            return
        super().save_checkpoint(filepath, *args, **kwargs)

    def _run(self, model: Any, ckpt_path: Any = None, weights_only: bool | None = None) -> Any:
        """Errors of one process end all; an interrupted training says how to resume."""
        for logger in self.loggers:
            if isinstance(logger, CSVLog):
                logger.is_of_training = self.state.fn == "fit"
        updates = getattr(model, "updates_per_rollout", 1)
        for saver in self.savers:  # nothing is saved at a step within a rollout
            steps = saver._every_n_train_steps
            saver._every_n_train_steps = math.ceil(steps / updates) * updates
        try:
            alone = self._folder_of_its_own() if self.state.fn == "fit" else nullcontext()
            with failing_together(self), self._finishing_updates(), alone:
                # Faults of checkpoint, data and policy are found before anything writes files.
                if ckpt_path is not None:
                    _require_weights(model, "--ckpt_path")
                    require(
                        Path(ckpt_path).exists(),
                        f"checkpoint {ckpt_path} does not exist; give --ckpt_path another, or last",
                    )
                if (data := getattr(self, "datamodule", None)) is not None:
                    data.setup(self.state.fn)
                if (read := getattr(self.lightning_module, "read_policy", None)) is not None:
                    read()
                return super()._run(model, ckpt_path, weights_only)
        except (KeyboardInterrupt, SIGTERMException) as end:
            if self.state.fn == "fit":
                self._save_interrupted()
                rank_zero_info(self._resume_hint())
            if isinstance(end, SIGTERMException):  # Lightning's own, between two batches
                raise KeyboardInterrupt(signal.SIGTERM) from end
            raise

    @contextmanager
    def _folder_of_its_own(self) -> Iterator[None]:
        """Refuse a folder in which another process trains. The lock ends with the process."""
        if not self.is_global_zero:
            yield
            return
        root = Path(self.default_root_dir)
        is_new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(folder)
            raise ConfigError(
                f"{root}: another process is training in this folder; wait for its end, or give "
                "this run a --trainer.default_root_dir of its own"
            ) from error
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            os.close(folder)
            if is_new and not any(root.iterdir()):  # refused before anything was written
                root.rmdir()

    @contextmanager
    def _finishing_updates(self) -> Iterator[None]:
        """Within it, Ctrl-C or SIGTERM lets the optimizer steps of a rollout finish.

        A second Ctrl-C does not. Lightning alone would keep SIGTERM until a batch has ended, which
        is a whole rollout or a whole evaluation, and let processes wait for each other's signal.
        """

        def interrupt(number: int, *_: Any) -> None:
            again, self.interrupt_waits = self.interrupt_waits, number
            if number == signal.SIGTERM and not again and self.strategy.launcher is not None:
                self.strategy.launcher.kill(number)  # to the processes that this one started
            if not self.defers_interrupts or (again and number == signal.SIGINT):
                raise KeyboardInterrupt(number)
            rank_zero_info("finishing the optimizer step, then saving; Ctrl-C again ends at once")

        self.defers_interrupts, self.interrupt_waits = False, 0
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        ours: dict[signal.Signals, Any] = {}
        for number, default in defaults.items():
            now = signal.getsignal(number)
            # Lightning puts back what it found: of an earlier training, the function below.
            if now == default or getattr(now, "__module__", "") == __name__:
                ours[number] = default
        if current_thread() is not main_thread():
            ours = {}
        for number in ours:
            signal.signal(number, interrupt)
        if signal.SIGTERM in ours:  # Lightning's own function calls a collective in a signal
            self._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]
        try:
            yield
        finally:
            for number, own in ours.items():
                signal.signal(number, own)

    def _save_interrupted(self) -> None:
        """Save ``last`` as it was after the latest rollout that was trained on.

        The other processes may be anywhere, so the first one saves alone, which DeepSpeed cannot.
        """
        shared = self.world_size > 1 and isinstance(self.strategy, DeepSpeedStrategy)
        trial: bool = self.fast_dev_run  # type: ignore[attr-defined]
        state, savers = self.fit_loop.resumable, self.savers
        if trial or shared or not savers or state is None or self.fit_loop.within_rollout:
            return
        progress: Any = self.fit_loop.epoch_loop.batch_progress.total
        if progress.processed != state["epoch_loop.batch_progress"]["total"]["processed"]:
            state = self.fit_loop.state_dict()  # the latest rollout's callbacks still run
        saver = savers[0]
        path = Path(str(saver.dirpath)) / f"{saver.CHECKPOINT_NAME_LAST}{saver.FILE_EXTENSION}"
        saver.last_model_path = str(path)
        self.fit_loop.load_state_dict(state)
        self.strategy.save_checkpoint(self._checkpoint_connector.dump_checkpoint(False), path)

    def _resume_hint(self) -> str:
        """How to resume an interrupted run."""
        saved = [saver.last_model_path for saver in self.savers if saver.last_model_path]
        interrupted = f"interrupted after optimizer step {self.global_step}"
        if not saved:
            return f"{interrupted}; there is no checkpoint yet, so start the run again"
        return f"{interrupted}; the same command with --ckpt_path last resumes from {saved[0]}"


def _require_weights(model: Any, what: str) -> None:
    """Refuse a policy on a server for ``what``, which needs weights."""
    require(
        not isinstance(getattr(model, "actor", None), RemotePolicy),
        f"{what}: model.engine is a server, which has weights of its own; leave it out",
    )


def _unchanged(value: Any) -> Any:
    return value


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
