"""Validation, test and predict: adaptive inference inside Lightning's evaluation loops."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from svr_lightning.core.stopping import DEFAULT_THRESHOLD, StopRule
from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import print_outcome, print_turn
from svr_lightning.evaluation.adaptive import OnTurn, Record, run_adaptive
from svr_lightning.evaluation.journal import Journal
from svr_lightning.evaluation.operating_point import (
    OPERATING_POINT,
    read_operating_point,
    uncertified_settings,
)
from svr_lightning.evaluation.results import (
    RESULTS,
    named_metrics,
    package_versions,
    summarize,
    write_results,
    write_samples,
)
from svr_lightning.evaluation.vote_pool import sample_votes
from svr_lightning.evaluation.votes_file import VOTES
from svr_lightning.files import to_json, write_file
from svr_lightning.recipes.base import Recipe
from svr_lightning.rollout.driver import Decoding, Driver
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import TASKS, get_task
from svr_lightning.training.config import EvaluationConfig, PolicyConfig
from svr_lightning.training.csv_log import CSVLog
from svr_lightning.training.data import Split
from svr_lightning.training.fingerprint import fingerprint, weights_fingerprint
from svr_lightning.training.pace import Pace
from svr_lightning.training.ranks import gather_lists
from svr_lightning.training.records import gather_records, warn_of_faults
from svr_lightning.training.serving import PolicyEngine
from svr_lightning.training.sources import problems_digest


class AdaptiveEvaluation(LightningModule):
    """The evaluation half of :class:`SVRModule`, which brings the policy and what serves it."""

    policy_config: PolicyConfig
    recipe: Recipe
    evaluation: EvaluationConfig
    seed: int
    renderer: Renderer
    serving: PolicyEngine
    run_config: dict[str, Any]
    """The resolved configuration, as results files quote it."""
    _records: list[Record]
    _journal: Journal | None = None

    # --- what a run is ------------------------------------------------------------------------

    @cached_property
    def own_threshold(self) -> float | None:
        """The operating point in the policy's folder; None without one.

        Raises:
            ConfigError: if the file there is none.
        """
        return read_operating_point(self.policy_config.path)

    @property
    def threshold(self) -> float:
        """gamma: the configured threshold, else the policy's own, else the paper's."""
        if self.evaluation.threshold is not None:
            return self.evaluation.threshold
        return DEFAULT_THRESHOLD if self.own_threshold is None else self.own_threshold

    @property
    def protocol(self) -> tuple[int, StopRule | None]:
        """T_max and the stopping rule, as far as they apply to the recipe's policies."""
        rule = self.evaluation.rule(self.threshold)
        return self.recipe.protocol(self.evaluation.max_turns, rule)

    def _own_gate(self) -> dict[str, Any]:
        """``gate`` of what ends a trajectory, or would where every turn is recorded."""
        rule = self.evaluation.replayed(self.threshold)
        _, rule = self.recipe.protocol(self.evaluation.max_turns, rule)
        return {} if rule is None else {"gate": rule.gate}

    def setup(self, stage: str) -> None:
        """Read the policy's operating point before anything is loaded, and say if it is used."""
        if self.evaluation.threshold is None and self.own_threshold is not None:
            file = Path(self.policy_config.path) / OPERATING_POINT
            rank_zero_info(f"threshold {self.own_threshold:g}, the operating point of {file}")
            other = uncertified_settings(
                self.policy_config.path, asdict(self.evaluation) | self._own_gate()
            )
            if other:
                rank_zero_warn(f"{file} promises nothing for {', '.join(other)}")

    def quoted_config(self) -> dict[str, Any]:
        """The configuration for results files, with the stopping rule that is really used.

        A recipe may have a gate of its own, which replays need where every turn is recorded.
        """
        model = self.run_config.get("model", {})
        evaluation = {**model.get("evaluation", {}), "threshold": self.threshold}
        evaluation |= self._own_gate()
        graders = dict.fromkeys(TASKS, self.evaluation.grader)
        model = {**model, "evaluation": evaluation}
        max_turns, rule = self.protocol
        protocol = {
            "max_turns": max_turns,
            "adaptive": rule is not None,
            "privileged": self.recipe.uses_labels,
        }
        return {**self.run_config, "model": model, "graders": graders, "protocol": protocol}

    def run_adaptive(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[Record]:
        """Adaptive inference on problems of one data set, as ``evaluation`` says.

        What the journal of the present evaluation holds is not run again. The completion limit
        is the data set's own, else the task's, and never above
        ``evaluation.max_completion_tokens``.
        """
        if not problems:
            return []
        with self.serving.sampling(self.global_step):
            return run_adaptive(
                problems,
                dataset=dataset,
                driver=self._driver(),
                renderer=self.renderer,
                decoding=self._decoding(problems[0].task, max_completion_tokens),
                max_turns=self.evaluation.max_turns,
                rule=self.evaluation.rule(self.threshold),
                recipe=self.recipe,
                grader=self.evaluation.grader,
                on_turn=on_turn,
                **self._journaling(dataset, len(problems)),
            )

    def sample_votes(
        self, problems: Sequence[Problem], dataset: str, max_completion_tokens: int | None = None
    ) -> list[Record]:
        """``evaluation.votes`` single-turn solutions of each problem; limits as above."""
        with self.serving.sampling(self.global_step):
            return sample_votes(
                problems,
                dataset=dataset,
                driver=self._driver(),
                renderer=self.renderer,
                decoding=self._decoding(problems[0].task, max_completion_tokens),
                votes=self.evaluation.votes,
                recipe=self.recipe,
                grader=self.evaluation.grader,
                **self._journaling(dataset, len(problems)),
            )

    def _driver(self, attempt: int = 0) -> Driver:
        return Driver(
            self.serving.engine,
            self.renderer,
            run_seed=self.seed,
            step=self.global_step,
            attempt=attempt,
        )

    def _decoding(self, task: str, max_completion_tokens: int | None) -> Decoding:
        config = self.evaluation
        limit = max_completion_tokens or get_task(task).max_completion_tokens
        if config.max_completion_tokens is not None:
            limit = min(limit, config.max_completion_tokens)
        return Decoding(
            max_completion_tokens=limit,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
        )

    # --- from its first problem to its files --------------------------------------------------

    def start_evaluation(self, name: str, part: Split) -> None:
        """Begin the records of ``eval/<name>/``, or go on with those of a killed process.

        Args:
            name: of the evaluation's folder.
            part: whose problems it is about.
        """
        self._records = []
        self._journal = None
        if self.trainer.sanity_checking:
            return
        path = self._evaluation_folder(name) / f".journal-{self.global_rank}.jsonl"
        self._journal = Journal(path, self._fingerprint(part))
        shared = int(getattr(self, "ranks_per_engine", 1))
        if shared > 1:  # They submit the same requests, so they have to skip the same problems.
            count = Counter(gather_lists(self._journal.finished()))
            self._journal.keep({key for key, ranks in count.items() if ranks == shared})
        if finished := len(self._journal.finished()):
            rank_zero_info(f"{path.parent}: going on after {finished} problems of an earlier start")

    def _journaling(self, dataset: str, total: int) -> dict[str, Any]:
        """What is done already, and what to do with each record that comes."""
        journal = self._journal
        if journal is None:
            return {}
        done = journal.done(dataset)
        pace = Pace(dataset, total, len(done))

        def keep(record: Record) -> None:
            journal.append(record)
            pace.count()

        return {"done": done, "on_record": keep}

    def _fingerprint(self, part: Split) -> str:
        """Of everything that a record follows from."""
        data: Any = self._datamodule
        policy = self.policy_config
        sources = zip(data.sources(part), data.problems(part), strict=True)
        return fingerprint(
            {
                "weights": weights_fingerprint(self.policy),
                "prompts": [
                    self.renderer.tokenizer.chat_template,
                    policy.chat_template_kwargs,
                    policy.max_prompt_tokens,
                    policy.max_model_len,
                ],
                "data": [(s.name, s.max_completion_tokens, problems_digest(p)) for s, p in sources],
                "evaluation": {**asdict(self.evaluation), "threshold": self.threshold},
                "draws": [self.seed, self.global_step],
                "recipe": repr(self.recipe),
                "engine": [type(self.serving.engine).__name__, self.serving.engine.dtype],
                "ranks": self.trainer.world_size,
                "versions": package_versions(),
            }
        )

    def save_evaluation(self, name: str, records: Sequence[Record]) -> dict[str, Any]:
        """Gather the records of all ranks, write ``eval/<name>/`` and drop the journals.

        Returns:
            The results on every rank; empty where no problem has a reference.
        """
        everything = gather_records(records)
        graded = bool(everything) and all(record["reference"] for record in everything)
        if self.trainer.is_global_zero and everything and not self.trainer.sanity_checking:
            folder = self._evaluation_folder(name)
            warn_of_faults(everything)
            if graded:
                write_results(folder, everything, self.quoted_config(), package_versions())
            else:
                write_samples(folder, everything)
        self._end_evaluation()
        return summarize(everything) if graded else {}

    def save_votes(self, records: Sequence[Record]) -> None:
        """Gather the records of all ranks, write ``eval/votes/`` and drop the journals."""
        everything = gather_records(records)
        if self.trainer.is_global_zero:
            warn_of_faults(everything)
            lines = (f"{to_json(record)}\n" for record in everything)
            write_file(self._evaluation_folder("votes") / VOTES, lines)
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        """Drop the journal, once what it was for is on disk."""
        if self._journal is not None:
            self.trainer.strategy.barrier()
            self._journal.discard()
            self._journal = None

    # --- Lightning's loops --------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Begin, or go on with, a set of records."""
        self.start_evaluation(self._validation_name(), "val")

    def validation_step(
        self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Solve a batch of one validation data set."""
        source = self._datamodule.val_sources[dataloader_idx]
        self._records += self.run_adaptive(batch, source.name, source.max_completion_tokens)

    def on_validation_epoch_end(self) -> None:
        """Log and write what the records say."""
        self._log_results("val", self.save_evaluation(self._validation_name(), self._records))

    def log_finished_validation(self) -> bool:
        """Whether the present step's validation was finished before an interruption.

        Its results may be on disk and not, or not all, in the log: what they say is logged again.
        """
        self._forget_logged("val")
        path = self._evaluation_folder(self._step_name()) / RESULTS
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        text = self.trainer.strategy.broadcast(text)  # rank 0 wrote it, perhaps where it alone sees
        if text is None:
            return False
        self.write_metrics(named_metrics("val", json.loads(text)), self.global_step)
        return True

    def _validation_name(self) -> str:
        return self._step_name() if self.trainer.state.fn == "fit" else "validate"

    def _step_name(self) -> str:
        return f"step-{self.global_step:06d}"

    def _evaluation_folder(self, name: str) -> Path:
        return Path(self.trainer.default_root_dir) / "eval" / name

    def on_test_epoch_start(self) -> None:
        """Begin, or go on with, a set of records."""
        self.start_evaluation("votes" if self.evaluation.votes else "test", "test")

    def test_step(self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Solve a batch of one test data set, or sample votes on it."""
        source = self._datamodule.test_sources[dataloader_idx]
        run = self.sample_votes if self.evaluation.votes else self.run_adaptive
        self._records += run(batch, source.name, source.max_completion_tokens)

    def on_test_epoch_end(self) -> None:
        """Log and write what the records say."""
        if self.evaluation.votes:
            self.save_votes(self._records)
        else:
            self._log_results("test", self.save_evaluation("test", self._records))

    def on_predict_epoch_start(self) -> None:
        """Begin, or go on with, a set of records."""
        self.start_evaluation("predict", "predict")

    def predict_step(self, batch: list[Problem], batch_idx: int) -> list[Record]:
        """Answer the user's questions, showing each turn as it comes."""
        several = len(batch) > 1

        def show(problem: Problem, turn: Turn) -> None:
            print_turn(problem, turn, name_problem=several)

        (source,) = self._datamodule.predict_sources
        records = self.run_adaptive(batch, source.name, source.max_completion_tokens, show)
        for record in records:
            print_outcome(record, self.protocol[1])
        self._records += records
        return records

    def on_predict_epoch_end(self) -> None:
        """Leave the transcripts on disk."""
        self.save_evaluation("predict", self._records)

    def write_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log at an optimizer step of our choosing.

        Lightning's own step counter lags by one after a resume, which would shift the curves.
        """
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=step)

    def _forget_logged(self, stage: str) -> None:
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLog):
                logger.forget(self.global_step, f"{stage}/")

    def _log_results(self, stage: str, results: dict[str, Any]) -> None:
        self._forget_logged(stage)  # of the same command before, or of what a kill cut off
        values, macro = named_metrics(stage, results), results.get("macro")
        self.write_metrics(values, self.global_step)
        # Equal on all ranks already; Lightning advises to say so.
        self.log_dict(values, logger=False, sync_dist=True)
        if stage == "val" and macro:
            for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
                self.log(name, macro["all"][metric], prog_bar=True, logger=False, sync_dist=True)

    @property
    def _datamodule(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]
