"""Display names of data sets, averages and methods, and their order."""

from collections.abc import Iterable, Sequence

from svr_lightning.evaluation.metrics import MATH_5

DISPLAY = {
    "countdown": "Countdown",
    "gsm8k": "GSM8K",
    "math500": "MATH500",
    "aime26": "AIME26",
    "amc23": "AMC23",
    "olympiadbench": "Olymp.",
    "minerva_math": "Minerva",
}
"""The paper's seven data sets in its order, under the names that its tables use."""

PRIVILEGED = " (privileged)"
"""Suffix of the name of a method whose prompts showed labels."""


def marked(name: str) -> str:
    """A method's name with the mark, which it may have already."""
    return name.removesuffix(PRIVILEGED) + PRIVILEGED


def apart(name: str) -> tuple[str, str]:
    """A name and its suffix, so that a caller can shorten the one and keep the other.

    Examples:
        >>> apart("Oracle (privileged)")
        ('Oracle', ' (privileged)')
    """
    mark = PRIVILEGED if name.endswith(PRIVILEGED) else ""
    return name.removesuffix(mark), mark


def display(dataset: str) -> str:
    """A data set's name in tables and figures."""
    return DISPLAY.get(dataset, dataset)


def ordered(datasets: Iterable[str]) -> list[str]:
    """Each data set once: the paper's first, in its order, then the others as they come."""
    present = list(dict.fromkeys(datasets))
    return [name for name in DISPLAY if name in present] + [
        name for name in present if name not in DISPLAY
    ]


def averages(datasets: Sequence[str]) -> dict[str, list[str]]:
    """The averages over all data sets, and over Math-5 if it is complete.

    A single data set stands for itself.

    Examples:
        >>> averages(["gsm8k", "math500"])
        {'All-2': ['gsm8k', 'math500']}
        >>> averages(["gsm8k"])
        {'GSM8K': ['gsm8k']}
    """
    names = ordered(datasets)
    if len(names) == 1:
        return {display(names[0]): names}
    if set(names) == set(MATH_5):
        return {"Math-5": names}
    found = {f"All-{len(names)}": names}
    if set(MATH_5) < set(names):
        found["Math-5"] = list(MATH_5)
    return found
