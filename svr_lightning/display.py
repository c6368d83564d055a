"""What a terminal shows of trajectories. Model text is printed as text: no markup, no escapes."""

from typing import Any

from rich.console import Console
from rich.text import Text

from svr_lightning.core.types import Problem, Turn

_VERDICT_STYLE = {"CORRECT": "bold blue", "INCORRECT": "bold dark_orange", "UNSURE": "bold grey50"}
_LINES = 12
"""Longest excerpt of one turn, in lines."""


def plain(text: str) -> str:
    """Model text without control characters, which could move the cursor or colour the screen."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def excerpt(text: str, lines: int = _LINES) -> str:
    """The last lines of a text, where the answer and the self-check stand."""
    rows = plain(text).strip().splitlines()
    return "\n".join(rows if len(rows) <= lines else ["...", *rows[-lines:]])


def turn_header(index: int, verdict: str, confidence: float, note: str) -> Text:
    """``turn 2  INCORRECT 0.35  note``."""
    header = Text(f"turn {index:<2} ", style="bold")
    header.append(f"{verdict:<9} ", style=_VERDICT_STYLE.get(verdict, ""))
    header.append(f"{confidence:.2f}", style="bold")
    header.append(f"  {note}", style="grey50")
    return header


def print_turn(problem: Problem, turn: Turn, *, name_problem: bool = False) -> None:
    """Show a turn as soon as it is there."""
    console = Console()
    if turn.index == 1:
        console.print(Text(f"\n{plain(problem.question)}", style="italic"))
    tokens = f"{turn.completion.completion_tokens} tokens"
    note = f"{tokens}, truncated" if turn.completion.truncated else tokens
    if name_problem:
        note += f"  [{plain(problem.id)}]"
    console.print(turn_header(turn.index, turn.check.verdict.value, turn.check.confidence, note))
    console.print(Text(excerpt(turn.completion.text)))


def print_outcome(record: dict[str, Any], threshold: float) -> None:
    """Say what is returned, where the trajectory stopped and why."""
    console = Console()
    if not record["turns"]:
        console.print(Text(f"{record['id']}: {record['error']}", style="red"))
        return
    last = record["turns"][-1]
    if record["stopped_early"]:
        why = f"CORRECT at confidence {last['confidence']:.2f} >= {threshold:.2f}"
    else:
        why = "no turns were left"
    grade = {True: ", correct", False: ", incorrect", None: ""}[last["correct"]]
    console.print(
        Text.assemble(
            ("answer: ", "bold"),
            plain(str(last["answer"])) + grade,
            f"   (turn {record['returned_turn']}; stopped: {why})",
        )
    )
