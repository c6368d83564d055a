"""Reading the traces of the embedded Countdown policy."""

import re

_TRACE = re.compile(
    r"""
    \s* <think> [^<]*               # calculations such as 6/2=3,
    = \s* (?P<result>[^=?<\s]+)     # the result of the last one
    \s* \? \s* (?P<target>[^<\s]+)  # a question mark and the target, as the policy writes it
    \s* </think>
    """,
    re.VERBOSE,
)


def trace_agrees(text: str) -> bool | None:
    """Whether a trace such as ``<think>6/2=3,3-1=2? 2</think>`` ends in two equal strings.

    That needs no arithmetic and no label. None for a text without such a trace.

    Examples:
        >>> trace_agrees("<think>3-1=2? 2</think> ..."), trace_agrees("<think>3+1=4? 2</think>")
        (True, False)
    """
    trace = _TRACE.match(text[:10_000])
    return None if trace is None else trace["result"] == trace["target"]
