"""The data module: which problems this process sees, and in which order.

Nothing here uses a global generator. The order of an epoch follows from (seed, epoch), and a fresh
draw from the seed that it is given, so that a resumed run sees what an uninterrupted one does.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partialmethod
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader, DistributedSampler

from svr_lightning.analysis.metrics import AVERAGES
from svr_lightning.core.ranges import Count, WholeNumber, check_arguments
from svr_lightning.core.types import Problem
from svr_lightning.errors import as_config_error, require
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import (
    DataSource,
    OnBadRow,
    check_text,
    is_hub_id,
    load_problems,
    problems_digest,
)

Split = Literal["train", "val", "test", "predict"]


class TrainingOrder(DistributedSampler[Any]):
    """One rank's indices of a shuffled epoch: its contiguous slice of every global batch.

    The order is ``numpy.random.default_rng([seed, epoch]).permutation(size)``, the same on all
    ranks and for every number of ranks; the last incomplete batch is left out. It is a
    ``DistributedSampler`` because Lightning sets the epoch of such a sampler and never replaces
    it by one of its own.
    """

    def __init__(
        self, problems: Sequence[Problem], *, batch_size: int, seed: int, rank: int, ranks: int
    ) -> None:
        super().__init__(problems, num_replicas=ranks, rank=rank, seed=seed)  # type: ignore[arg-type]
        self._size = len(problems)
        self._batch_size = batch_size
        self._share = batch_size // ranks

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self._size)
        for batch in range(self._size // self._batch_size):
            first = batch * self._batch_size + self.rank * self._share
            yield from order[first : first + self._share].tolist()

    def __len__(self) -> int:
        return self._size // self._batch_size * self._share


class SVRDataModule(LightningDataModule):
    """Validated problems for training, evaluation and prediction.

    Args:
        train: what ``fit`` trains on.
        val: data sets that are evaluated during ``fit`` and by ``validate``.
        test: data sets that ``test`` evaluates.
        questions: questions of your own that ``predict`` answers.
        questions_task: the task whose prompts and answer syntax ``questions`` take; None is that of
            the training problems, and ``math`` without any.
        problems_per_step: problems of one optimizer step, over all processes together. A rollout
            has ``model.updates_per_rollout`` times as many.
        eval_batch_size: problems of a data set that one process hands to its engine together;
            None hands over all, so that the engine's batch stays full until the end. The engine's
            own setting limits how many it completes at a time.
        local_files: by the name of a hub data set, a local file or folder to read instead, or an
            embedded set. A file is read completely, so ``split``, ``subset``, ``revision`` and
            ``select`` do not apply; give validation a file of its own. A data set whose own
            ``path`` is local keeps that path.
        seed: with the epoch, decides the order of training problems.
        on_bad_row: ``error`` ends the run when a row of any data set cannot be used; ``skip``
            leaves such rows out with a warning that counts them.
    """

    @check_arguments
    def __init__(
        self,
        train: DataSource | None = None,
        val: list[DataSource] | None = None,
        test: list[DataSource] | None = None,
        questions: list[str] | None = None,
        questions_task: str | None = None,
        problems_per_step: Count = 16,
        eval_batch_size: Count | None = None,
        local_files: dict[str, str] | None = None,
        seed: WholeNumber = 42,
        on_bad_row: OnBadRow = "error",
    ) -> None:
        super().__init__()
        self.problems_per_step = problems_per_step
        self.eval_batch_size = eval_batch_size
        self.seed = seed
        self.on_bad_row = on_bad_row
        self.questions = list(questions or [])
        task = questions_task or (train.task if train else "math")
        own = DataSource(name="questions", task=task, path="data.questions")
        self.sources: dict[Split, list[DataSource]] = {
            "train": [train] if train else [],
            "val": list(val or []),
            "test": list(test or []),
            "predict": [own] if self.questions else [],
        }
        for part, sources in self.sources.items():
            sources[:] = [_with_local_file(source, local_files or {}) for source in sources]
            names = [source.name for source in sources]
            unique = len(set(names)) == len(names)
            require(unique, f"data.{part}: the names {names} must differ from each other")
            averages = [name for name in names if name in AVERAGES]
            require(
                len(names) == 1 or not averages,
                f"data.{part}: {averages} are the names of averages; rename the data set",
            )
        self._problems: dict[Split, list[list[Problem]]] = {}

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Nothing moves: problems have no tensors, and micro-batches move one by one."""
        return batch

    def setup(self, stage: str | None = None) -> None:
        """Read and validate the data of a stage, so that errors are found before the work begins.

        Raises:
            ConfigError: for faulty data, or if a setting does not fit the data.
        """
        if stage == "fit":
            validates = getattr(self.trainer, "limit_val_batches", None) != 0
            held_out = self.problems("val") if validates else []
            trained = {problem.question for problem in self._training()}
            for source, problems in zip(self.sources["val"], held_out, strict=False):
                if shared := sum(problem.question in trained for problem in problems):
                    rank_zero_warn(
                        f"data.val: {shared} of {len(problems)} problems of {source.label} are "
                        "also trained on, so they do not measure new ones; give data.val rows "
                        "of its own"
                    )
        elif stage is not None:
            # Lightning's stages equal these words, and are printed as members of an enumeration.
            part: Any = {"validate": "val", "test": "test", "predict": "predict"}[stage]
            if getattr(self.trainer, f"limit_{part}_batches", None) == 0:
                return
            setting = "questions, or give --question" if part == "predict" else part
            require(bool(self.problems(part)), f"there are no problems: set data.{setting}")

    def problems(self, part: Split) -> list[list[Problem]]:
        """All problems of a part, one list for each of its sources, before any sharding."""
        if part not in self._problems:
            self._problems[part] = [self._load(part, source) for source in self.sources[part]]
        return self._problems[part]

    def fresh_problems(
        self, seed: int, count: int, exclude_ids: Collection[str] = ()
    ) -> list[Problem]:
        """Draw training problems without replacement; the draw depends only on the arguments.

        Args:
            seed: of this draw; the same on every rank gives the same problems on every rank.
            count: how many.
            exclude_ids: problems that must not be among them.

        Returns:
            ``count`` problems, or as many as are left.
        """
        problems = self._training()
        excluded = frozenset(exclude_ids)
        order = np.random.default_rng(seed).permutation(len(problems))
        left = (problems[index] for index in order if problems[index].id not in excluded)
        return list(islice(left, count))

    @cached_property
    def training_digest(self) -> str:
        """A sha256 over all training problems in their order."""
        return problems_digest(self.problems("train")[0])

    def train_dataloader(self) -> DataLoader[Problem]:
        """Batches of ``problems_per_rollout / ranks`` problems; one batch is one rollout."""
        problems = self._training()
        rank, ranks = self.shard
        order = TrainingOrder(
            problems, batch_size=self.problems_per_rollout, seed=self.seed, rank=rank, ranks=ranks
        )
        return _loader(problems, order, self.problems_per_rollout // ranks)

    def evaluation_loaders(self, part: Split) -> list[DataLoader[Problem]]:
        """One loader for each source of a part."""
        rank, ranks = self.shard
        loaders = []
        for source, problems in zip(self.sources[part], self.problems(part), strict=True):
            # Lightning's loop would skip a rank without problems, its collectives included.
            require(
                len(problems) >= ranks,
                f"{source.label}: {len(problems)} problems cannot be shared among {ranks} "
                f"processes; set trainer.devices to at most {len(problems)}",
            )
            share = UnrepeatedDistributedSampler(
                problems, num_replicas=ranks, rank=rank, shuffle=False
            )
            loaders.append(_loader(problems, share, self.eval_batch_size or len(share)))
        return loaders

    val_dataloader = partialmethod(evaluation_loaders, "val")
    test_dataloader = partialmethod(evaluation_loaders, "test")
    predict_dataloader = partialmethod(evaluation_loaders, "predict")

    def _load(self, part: Split, source: DataSource) -> list[Problem]:
        if part == "predict":
            return _question_problems(self.questions, source)
        problems = load_problems(source, self.on_bad_row)
        rank_zero_info(
            f"data.{part}: {len(problems)} {problems[0].task} problems of {source.name!r}\n"
            f"  ({source.path}), sha256 {problems_digest(problems)[:16]}"
        )
        return problems

    @property
    def problems_per_rollout(self) -> int:
        """Problems that are rolled out together, over all processes."""
        module = None if self.trainer is None else self.trainer.lightning_module
        return self.problems_per_step * getattr(module, "updates_per_rollout", 1)

    @property
    def shard(self) -> tuple[int, int]:
        """This process's share of the problems, and the number of shares: one for each process."""
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def _training(self) -> list[Problem]:
        """The training problems, if they are enough for one rollout of all processes."""
        require(bool(self.sources["train"]), "nothing to train on: set data.train")
        (source,), (problems,) = self.sources["train"], self.problems("train")
        _, ranks = self.shard
        require(
            self.problems_per_step % ranks == 0,
            f"data.problems_per_step={self.problems_per_step} must be a multiple of the "
            f"{ranks} processes that share it",
        )
        require(
            len(problems) >= self.problems_per_rollout,
            f"{source.label}: {len(problems)} problems are fewer than the "
            f"{self.problems_per_rollout} of one rollout (data.problems_per_step="
            f"{self.problems_per_step} x model.updates_per_rollout="
            f"{self.problems_per_rollout // self.problems_per_step}); lower them or add data",
        )
        return problems


def _with_local_file(source: DataSource, local_files: Mapping[str, str]) -> DataSource:
    if source.name not in local_files or not is_hub_id(source.path):
        return source  # a local path of its own wins over local_files
    path = local_files[source.name]
    require(
        path.startswith("embedded:") or Path(path).expanduser().exists(),
        f"data.local_files: {path} for {source.name!r} does not exist; correct the path, or give "
        "--data.local_files '{}' to read every data set from its own path",
    )
    return replace(source, path=path, subset=None, revision=None, select=None)


def _loader(problems: list[Problem], sampler: Any, batch_size: int) -> DataLoader[Problem]:
    # Worker processes would read ahead of set_epoch. A loader without a generator of its own
    # draws a number from torch's global one whenever it is iterated over.
    return DataLoader(
        problems,  # type: ignore[arg-type]
        batch_size=batch_size,
        sampler=sampler,
        collate_fn=list,
        num_workers=0,
        generator=torch.Generator(),
    )


def _question_problems(questions: list[str], source: DataSource) -> list[Problem]:
    problems = []
    with as_config_error("data.questions: "):
        task = get_task(source.task)
        for index, question in enumerate(questions):
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"question {index} is empty")
            check_text(question, f"question {index}")
            problems.append(replace(task.from_question(question), id=f"{source.name}/{index}"))
    return problems
