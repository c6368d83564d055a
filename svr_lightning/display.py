"""What a terminal shows of trajectories. Model text is printed as text: no markup, no escapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from svr_lightning.core.stopping import StopRule, evidence_of
from svr_lightning.core.types import Problem, SelfCheck, Turn
from svr_lightning.evaluation.table import signals

_VERDICT_STYLE = {"CORRECT": "bold blue", "INCORRECT": "bold dark_orange", "UNSURE": "bold grey50"}
_EVIDENCE = {
    "stated": "confidence",
    "verdict_probability": "probability of the verdict",
    "product": "confidence x probability of the verdict",
}
_LINES = 12
"""Longest excerpt of one turn, in lines."""


def plain(text: str) -> str:
    """Model text without control characters, which could move the cursor or colour the screen."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def excerpt(text: str, lines: int = _LINES) -> str:
    """The last lines of a text, where the answer and the self-check stand."""
    rows = plain(text).strip().splitlines()
    return "\n".join(rows if len(rows) <= lines else ["...", *rows[-lines:]])


def turn_header(index: int, check: SelfCheck | None, note: str) -> Text:
    """``turn 2  INCORRECT 0.35  note``; without a self-check ``turn 2  note``."""
    header = Text(f"turn {index:<2} ", style="bold")
    if check is not None:
        verdict = check.verdict.value
        header.append(f"{verdict:<9} ", style=_VERDICT_STYLE.get(verdict, ""))
        header.append(f"{check.confidence:.2f}  ", style="bold")
    header.append(note, style="grey50")
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
    console.print(turn_header(turn.index, turn.check, note))
    console.print(Text(excerpt(turn.completion.text)))


def print_outcome(record: dict[str, Any], rule: StopRule | None) -> None:
    """Say what is returned, where the trajectory stopped and why."""
    console = Console()
    if not record["turns"]:
        console.print(Text(f"{plain(record['id'])}: {record['error']}", style="red"))
        return
    turn = record["turns"][record["returned_turn"] - 1]
    grade = {True: ", correct", False: ", incorrect", None: ""}[turn["correct"]]
    if "grading_error" in turn:
        grade = ", could not be graded"
    console.print(
        Text.assemble(
            ("answer: ", "bold"),
            plain(str(turn["answer"])) + grade,
            f"   (turn {record['returned_turn']}; stopped: {stop_reason(record, rule)})",
        )
    )


def stop_reason(record: Mapping[str, Any], rule: StopRule | None) -> str:
    """Why a recorded trajectory ended under ``rule``, in a few words."""
    if rule is None or not record["stopped_early"]:
        chosen = record["returned_turn"] < len(record["turns"])
        return "no turns were left" + (", the most confident one counts" if chosen else "")
    if rule.gate == "verdict":
        return "CORRECT"
    last = signals(record["turns"][-1])
    name = _EVIDENCE["stated" if last.verdict_probability is None else rule.evidence]
    value, threshold, why = evidence_of(rule, last), rule.threshold, ""
    if value < threshold and rule.agreement_threshold is not None:
        threshold, why = rule.agreement_threshold, " for an answer given twice"
    verdict = "CORRECT at " if rule.gate == "joint" else ""
    return f"{verdict}{name} {number(value)} >= {number(threshold)}{why}"


def number(value: float) -> str:
    """Two decimals, and four digits where two decimals would round."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.4g}"


def name_some(names: Sequence[str], most: int = 10) -> str:
    """Names in one line, the first of them where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return plain(", ".join(names[:most]).replace("\n", " ")) + more
