"""Turns and outcomes of trajectories on a terminal, as ``predict`` shows them."""

from rich.console import Console
from rich.text import Text

from svr_lightning.core.stopping import StopRule, evidence_of
from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import excerpt, number, plain, turn_header
from svr_lightning.evaluation.records import SampleRecord

_EVIDENCE = {
    "stated": "confidence",
    "verdict_probability": "probability of the verdict",
    "product": "confidence x probability of the verdict",
}


def print_turn(problem: Problem, turn: Turn, *, name_problem: bool = False) -> None:
    """Show a turn as soon as it ends."""
    console = Console()
    if turn.index == 1:
        console.print(Text(f"\n{plain(problem.question)}", style="italic"))
    tokens = f"{turn.completion.completion_tokens} tokens"
    note = f"{tokens}, truncated" if turn.completion.truncated else tokens
    if name_problem:
        note += f"  [{plain(problem.id)}]"
    console.print(turn_header(turn.index, turn.check, note))
    console.print(Text(excerpt(turn.completion.text)))


def print_outcome(record: SampleRecord, rule: StopRule | None) -> None:
    """Say what is returned, where the trajectory stopped and why."""
    console = Console()
    if not record.turns:
        console.print(Text(f"{plain(record.id)}: {record.error}", style="red"))
        return
    turn = record.turns[record.returned_turn - 1]
    grade = {True: ", correct", False: ", incorrect", None: ""}[turn.correct]
    if turn.grading_error is not None:
        grade = ", could not be graded"
    console.print(
        Text.assemble(
            ("answer: ", "bold"),
            plain(str(turn.answer)) + grade,
            f"   (turn {record.returned_turn}; stopped: {stop_reason(record, rule)})",
        )
    )


def stop_reason(record: SampleRecord, rule: StopRule | None) -> str:
    """Why a recorded trajectory ended under ``rule``, in a few words."""
    if rule is None or not record.stopped_early:
        chosen = record.returned_turn < len(record.turns)
        return "no turns were left" + (", the most confident one counts" if chosen else "")
    if rule.gate == "verdict":
        return "CORRECT"
    last = record.turns[-1].signals()
    name = _EVIDENCE["stated" if last.verdict_probability is None else rule.evidence]
    value, threshold, why = evidence_of(rule, last), rule.threshold, ""
    if value < threshold and rule.agreement_threshold is not None:
        threshold, why = rule.agreement_threshold, " for an answer given twice"
    verdict = "CORRECT at " if rule.gate == "joint" else ""
    return f"{verdict}{name} {number(value)} >= {number(threshold)}{why}"
