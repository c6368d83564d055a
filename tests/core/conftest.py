"""A megabyte of what a policy might write at its worst."""

import pytest

_PIECES = {
    "unclosed-boxes": "\\boxed{",
    "empty-boxes": "\\boxed{}",
    "boxes": "\\boxed{1} ",
    "opening-braces": "{",
    "closing-braces": "}",
    "escaped-backslashes": "\\\\",
    "opening-answers": "<answer>",
    "closing-answers": "</answer>",
    "answers": "<answer>1</answer>",
    "closing-thoughts": "</think>",
    "thoughts-and-space": "</think> ",
    "opening-checks": "<self_check>",
    "closing-checks": "</self_check>",
    "checks": "<self_check>VERDICT: CORRECT</self_check>",
    "verdicts": "VERDICT: CORRECT, ",
    "confidences": "CONFIDENCE: 1e",
    "marks": "#### ",
    "hashes": "#",
    "spaces": " ",
    "nuls": "\x00",
    "digits": "9",
    "parentheses": "(",
}


@pytest.fixture(params=list(_PIECES.values()), ids=list(_PIECES))
def hostile_text(request: pytest.FixtureRequest) -> str:
    """One piece, repeated to a million characters."""
    piece = str(request.param)
    return piece * (1_000_000 // len(piece))
