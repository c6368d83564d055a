"""The module that Lightning's evaluation loops run where a server has the policy."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from svr_lightning.core.types import Problem
from svr_lightning.endpoint.driver import RemoteDriver
from svr_lightning.endpoint.journal import JOURNAL, Journal
from svr_lightning.endpoint.progress import Progress
from svr_lightning.endpoint.settings import EndpointSettings
from svr_lightning.evaluation.adaptive import OnTurn, Record, run_adaptive
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.evaluating import AdaptiveEvaluation, evaluation_decoding


class EndpointModule(AdaptiveEvaluation):
    """Adaptive inference through a server. It has no policy, no tokenizer and no weights.

    Args:
        settings: which server.
        evaluation: adaptive inference, as a configuration says it.
        chat_template_kwargs: for the server's chat template.
        seed: of every random draw.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        evaluation: EvaluationConfig,
        chat_template_kwargs: dict[str, Any],
        seed: int,
    ) -> None:
        super().__init__()
        settings.api_key()  # a variable that is not set is said before anything is read
        self.settings = settings
        self.evaluation = evaluation
        self.chat_template_kwargs = chat_template_kwargs
        self.seed = seed
        self.run_config: dict[str, Any] = {}
        self._journal: Journal | None = None

    def run_adaptive(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[Record]:
        """Adaptive inference on problems of one data set, as ``evaluation`` says."""
        if not problems:
            return []
        config = self.evaluation
        driver = RemoteDriver(
            self.settings,
            self._open_journal(),
            run_seed=self.seed,
            chat_template_kwargs=self.chat_template_kwargs,
            progress=Progress(dataset, quiet=on_turn is not None),
        )
        return run_adaptive(
            problems,
            dataset=dataset,
            driver=driver,
            renderer=None,
            decoding=evaluation_decoding(config, problems[0].task, max_completion_tokens),
            max_turns=config.max_turns,
            threshold=config.threshold if config.adaptive else None,
            on_turn=on_turn,
        )

    def save_evaluation(self, name: str, records: Sequence[Record]) -> dict[str, Any]:
        """Write the files of an evaluation; the answers they are made of are needed no more."""
        failed = [record for record in records if record.get("error")]
        if failed:
            rank_zero_info(
                f"{len(failed)} of {len(records)} problems could not be run and count as wrong; "
                f"{failed[0]['id']}: {failed[0]['error']}"
            )
        results = super().save_evaluation(name, records)
        if self._journal is not None:
            self._journal.remove()
            self._journal = None
        return results

    def _open_journal(self) -> Journal:
        if self._journal is None:
            path = self._evaluation_folder(str(self.trainer.state.fn.value)) / JOURNAL
            self._journal = Journal(path)
            if len(self._journal):
                rank_zero_info(
                    f"going on with the {len(self._journal)} answers in {path}; remove it to "
                    "begin anew"
                )
        return self._journal
