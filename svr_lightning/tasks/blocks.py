"""The ``<answer>`` block of a completion. Its tags are written in lower case, as prompts ask."""

OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"


def first_answer(text: str) -> str | None:
    """What stands between the first opening tag and the next closing tag, or None."""
    start = text.find(OPEN_TAG)
    end = text.find(CLOSE_TAG, start + len(OPEN_TAG))
    return None if start < 0 or end < 0 else text[start + len(OPEN_TAG) : end]


def last_answer(text: str) -> str | None:
    """What stands between the last opening tag that is closed and the next closing tag, or None."""
    start = text.rfind(OPEN_TAG, 0, max(text.rfind(CLOSE_TAG), 0))
    return None if start < 0 else text[start + len(OPEN_TAG) : text.find(CLOSE_TAG, start)]
