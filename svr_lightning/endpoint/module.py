"""The module that Lightning's evaluation loops run where a server has the policy."""

import contextlib
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from svr_lightning.core.types import AnyCompletion, Message, Problem
from svr_lightning.endpoint.answers import ANSWERS, AnswerJournal
from svr_lightning.endpoint.driver import RemoteDriver
from svr_lightning.endpoint.progress import Progress
from svr_lightning.endpoint.settings import EndpointSettings
from svr_lightning.errors import require
from svr_lightning.evaluation.adaptive import OnTurn, Record
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.data import Split
from svr_lightning.training.evaluating import AdaptiveEvaluation


class ServerRendering:
    """The place of a renderer where the server renders: it refuses what does not fit."""

    def fits(self, messages: Sequence[Message]) -> bool:
        """Only the server can tell."""
        return True

    def verdict_probability(self, completion: AnyCompletion) -> None:
        """Not known without the sampled tokens."""


class ServerSampling:
    """The place of an engine in this process: there is nothing to bring up to date."""

    def sampling(self, step: int) -> contextlib.AbstractContextManager[None]:
        """The server is always ready."""
        return contextlib.nullcontext()


class EndpointModule(AdaptiveEvaluation):
    """Adaptive inference through a server. It has no policy, no tokenizer and no weights.

    Args:
        settings: which server.
        evaluation: adaptive inference, as a configuration says it.
        chat_template_kwargs: for the server's chat template.
        seed: of every random draw.
        recipe: says which prompts its policies are evaluated with; SVR where it is left out.

    Raises:
        ConfigError: if the evaluation needs more than a server tells, or there is no key where
            there should be one.
    """

    own_threshold = None  # an operating point lies in the policy's folder, which is elsewhere

    def __init__(
        self,
        settings: EndpointSettings,
        evaluation: EvaluationConfig,
        chat_template_kwargs: dict[str, Any],
        seed: int,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__()
        settings.api_key()  # a variable that is not set is said before any data is read
        require(
            evaluation.evidence == "stated",
            f"model.evaluation.evidence={evaluation.evidence}: the probability of a verdict is not "
            "known of a server's completions; set it to stated",
        )
        self.settings = settings
        self.evaluation = evaluation
        self.chat_template_kwargs = chat_template_kwargs
        self.seed = seed
        self.recipe = recipe or SVR()
        self.recipe.check()
        self.run_config: dict[str, Any] = {}
        self.renderer: Any = ServerRendering()
        self.serving: Any = ServerSampling()
        self._answers: AnswerJournal | None = None
        self._progress = Progress("", 0)

    def run_adaptive(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[Record]:
        """Adaptive inference on problems of one data set, as ``evaluation`` says."""
        self._progress = Progress(dataset, len(problems), quiet=on_turn is not None)
        return super().run_adaptive(problems, dataset, max_completion_tokens, on_turn)

    def sample_votes(
        self, problems: Sequence[Problem], dataset: str, max_completion_tokens: int | None = None
    ) -> list[Record]:
        """``evaluation.votes`` single-turn solutions of each problem."""
        self._progress = Progress(dataset, len(problems) * self.evaluation.votes)
        return super().sample_votes(problems, dataset, max_completion_tokens)

    def start_evaluation(self, name: str, part: Split) -> None:
        """Begin the records of ``eval/<name>/``.

        The server's answers are kept instead of the records made of them: they are what costs
        time, and those of unfinished problems count too.
        """
        self._records = []
        path = self._evaluation_folder(name) / ANSWERS
        self._answers = AnswerJournal(path)
        if len(self._answers):
            rank_zero_info(
                f"going on with the {len(self._answers)} answers in {path}; remove it to ask anew"
            )

    def _driver(self, attempt: int = 0) -> Any:
        return RemoteDriver(
            self.settings,
            self._answers,
            run_seed=self.seed,
            chat_template_kwargs=self.chat_template_kwargs,
            progress=self._progress,
        )

    def _end_evaluation(self) -> None:
        """Drop the answers, once the files that they were for are on disk."""
        if self._answers is not None:
            self._answers.discard()
            self._answers = None
