"""Where a completion analyses an earlier answer, and what is left of it without that."""

from svr_lightning.core.baseline_prompts import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.core.parsing import without_spans
from svr_lightning.tasks.blocks import OPEN_TAG as ANSWER_OPEN


def without_analysis(text: str) -> str:
    """A completion without its analyses."""
    return without_spans(text, ANALYSIS_OPEN, ANALYSIS_CLOSE)


def analysis_span(text: str) -> tuple[int, int] | None:
    """The analysis of a completion, else what stands before its answer, else None for all of it.

    Example:
        >>> analysis_span("<analysis>a</analysis> <answer>1</answer>")
        (0, 22)
    """
    start = text.find(ANALYSIS_OPEN)
    end = text.find(ANALYSIS_CLOSE, max(start, 0))
    if start >= 0 and end >= 0:
        return start, end + len(ANALYSIS_CLOSE)
    answer = text.find(ANSWER_OPEN)
    return (0, answer) if answer > 0 else None
