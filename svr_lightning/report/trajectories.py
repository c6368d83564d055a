"""The trajectories of a report: what happened in each, which are shown, and their HTML."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from svr_lightning.core.parsing import SelfCheckFields, self_check_format_score
from svr_lightning.evaluation.records import SampleRecord, TurnRecord
from svr_lightning.report.names import apart, display, ordered
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.text import clip, visible

CLASSES = {
    "premature": "premature stop",
    "fixed": "fixed by refinement",
    "broken": "broken by refinement",
    "truncated": "truncated",
    "malformed": "malformed self-check",
}
"""The filters of the trajectory section, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A record with what the stopping rule made of it."""

    record: SampleRecord
    returned: int
    """The turn whose answer is returned; 0 if the problem could not be run."""
    observed: int
    """Turns up to the stop; later ones were recorded and not used."""
    stopped_early: bool
    interface: SelfCheckFields | None
    """The fields of a self-check; None without self-checks."""
    classes: frozenset[str]
    """Keys of :data:`CLASSES`; a trajectory may be in several or none."""

    @property
    def right(self) -> bool:
        """Whether the returned answer is correct."""
        return self.returned > 0 and bool(self.record.turns[self.returned - 1].correct)


def trajectories(run: Run) -> Iterator[Trajectory]:
    """Each problem of a run once, data set by data set, in the order of its tables."""
    first: dict[tuple[str, str], SampleRecord] = {}
    for record in run.records:
        first.setdefault(record.key, record)
    interface = run.interface
    for name, table in run.tables.items():
        outcome = run.outcomes[name]
        columns = (outcome.returned, outcome.observed, outcome.stopped_early)
        for key, returned, observed, early in zip(
            table.ids, *(column.tolist() for column in columns), strict=True
        ):
            record = first[name, key]
            yield Trajectory(
                record=record,
                returned=returned,
                observed=observed,
                stopped_early=early,
                interface=interface,
                classes=classes(record.turns[:observed], returned, early, interface),
            )


def malformed(text: str, interface: SelfCheckFields | None) -> bool:
    """Whether a turn lacks a self-check that it was asked for, or part of it."""
    return interface is not None and self_check_format_score(text, interface) < 1


def classes(
    turns: Sequence[TurnRecord],
    returned: int,
    early: bool,
    interface: SelfCheckFields | None,
) -> frozenset[str]:
    """The keys of :data:`CLASSES` that fit the observed ``turns`` of a trajectory.

    Broken is a wrong answer that was right at an earlier turn, fixed a right one whose first was
    wrong.
    """
    if not turns:
        return frozenset()
    right = [bool(turn.correct) for turn in turns]
    final = right[returned - 1]
    found = {
        "premature": early and not final,
        "fixed": final and not right[0],
        "broken": not final and any(right[: returned - 1]),
        "truncated": any(turn.truncated for turn in turns),
        "malformed": any(malformed(turn.text, interface) for turn in turns),
    }
    return frozenset(key for key, holds in found.items() if holds)


def choose(found: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Up to ``most`` of each class, and of those in no class, taken from the data sets in turn."""
    chosen: set[int] = set()
    for key in (*CLASSES, None):
        by_dataset: dict[str, list[int]] = {}
        for index, one in enumerate(found):
            if key in one.classes if key else not one.classes:
                by_dataset.setdefault(one.record.dataset, []).append(index)
        chosen |= set(_in_turn(list(by_dataset.values()), most))
    return [found[index] for index in sorted(chosen)]


def _in_turn(queues: Sequence[Sequence[int]], most: int) -> list[int]:
    """The first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues), default=0)
    order = [queue[place] for place in range(longest) for queue in queues if place < len(queue)]
    return order[:most]


# --- as HTML ----------------------------------------------------------------------------------

FILTERS = {"kind": "show", "method": "method", "set": "data set"}
"""Groups of radio buttons, by the prefix of their ids."""
_HEAD, _TAIL = 1500, 2500
"""Characters shown of a long turn, from its beginning and its end."""
_NAME, _ANSWER, _QUESTION = 80, 300, 160
_RIGHT = '<span class="right">\u2713 right</span>'.encode("ascii", "xmlcharrefreplace").decode()
_WRONG = '<span class="wrong">\u2717 wrong</span>'.encode("ascii", "xmlcharrefreplace").decode()


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The parts of the trajectory section, as HTML and CSS; only the names are plain text."""

    filters: dict[str, list[tuple[str, int]]]
    """{group: [(name, problems in the recording)]}; the first of a group shows everything."""
    items: list[str]
    css: str
    note: str


def listing(methods: Sequence[Method], most: int) -> Listed:
    """At most ``most`` trajectories per class and method, of each method's first seed."""
    found = [list(trajectories(method.runs[0])) for method in methods]
    names = ordered(one.record.dataset for rows in found for one in rows)
    kinds = list(CLASSES)
    everything = [one for rows in found for one in rows]
    total = len(everything)
    counts = {
        "kind": [(CLASSES[k], sum(k in one.classes for one in everything)) for k in kinds],
        "method": [(m.name, len(rows)) for m, rows in zip(methods, found, strict=True)],
        "set": [
            (display(name), sum(one.record.dataset == name for one in everything)) for name in names
        ],
    }
    filters = {
        group: [("all", total), *((_named(name), count) for name, count in rows)]
        for group, rows in counts.items()
    }
    items = []
    for number, (method, rows) in enumerate(zip(methods, found, strict=True), start=1):
        for one in choose(rows, most):
            tokens = [f"method-{number}", f"set-{names.index(one.record.dataset) + 1}"]
            tokens += [f"kind-{kinds.index(key) + 1}" for key in kinds if key in one.classes]
            label = method.name if len(methods) > 1 else ""
            items.append(_trajectory(one, tokens, label, method.runs[0].rule.threshold))
    note = (
        f"{len(items):,} of {total:,} trajectories are listed: at most {most} per method of each "
        "kind and of no kind, from the data sets in turn. Counts are of all of them."
    )
    if any(len(method.runs) > 1 for method in methods):
        note += " Of several seeds, the first."
    return Listed(filters=filters, items=items, css=_css(filters), note=note)


def _named(name: str) -> str:
    """A name of bounded length, with its mark."""
    name, mark = apart(name)
    return clip(name, _NAME, 0)[0] + mark


def _css(filters: Mapping[str, Sequence[Any]]) -> str:
    """CSS: what each radio button hides, and its label when chosen or focused."""
    rules = []
    for group, entries in filters.items():
        for number in range(len(entries)):
            one = f"#{group}-{number}"
            label = f".filters label[for={group}-{number}]"
            rules.append(
                f"{one}:checked~.filters label[for={group}-{number}]"
                "{background:var(--ink);color:var(--paper);border-color:var(--ink)}"
            )
            rules.append(f"{one}:checked~{label} small{{color:inherit}}")
            rules.append(
                f"{one}:focus-visible~{label}{{outline:2px solid var(--blue);outline-offset:2px}}"
            )
            if number:
                rules.append(f"{one}:checked~.list>.t:not(.{group}-{number}){{display:none}}")
    return "\n".join(rules)


def _trajectory(one: Trajectory, tokens: Sequence[str], method: str, threshold: float) -> str:
    record = one.record
    observed = record.turns[: one.observed]
    path = "".join(_mark(turn.correct) for turn in observed)
    tags = "".join(
        f'<span class="tag {k}">{v}</span>' for k, v in CLASSES.items() if k in one.classes
    )
    names = f"{display(record.dataset)} / {record.id}"
    head = [f'<span class="id">{visible(clip(names, _NAME, _NAME)[0])}</span>']
    head += [f'<span class="grey">{visible(_named(method))}</span>'] if method else []
    head += [f'<span class="path">{path}</span>', _RIGHT if one.right else _WRONG, tags]
    asked = " ".join(record.question[: 4 * _QUESTION].split())
    head.append(f'<span class="question">{visible(clip(asked, _QUESTION, 0)[0])}</span>')
    body = [f"<pre>{_long(record.question)}</pre>"]
    body.append(f'<p class="answer">reference: <code>{_long(_said(record.reference))}</code></p>')
    if not observed:
        body.append(f'<p class="wrong">not run: {_long(_said(record.error))}</p>')
    body.append('<div class="turns">')
    before = None
    for turn in observed:
        body.append(_turn(turn, one, before, threshold))
        before = turn
    body.append("</div>")
    body += _unused(record.turns[one.observed :])
    inner = f"<summary>{' '.join(head)}</summary>{''.join(body)}"
    return f'<details class="t {" ".join(tokens)}">{inner}</details>'


def _turn(turn: TurnRecord, one: Trajectory, before: TurnRecord | None, threshold: float) -> str:
    returned = turn.turn == one.returned
    parts = [f"<b>turn {turn.turn}</b>"]
    if one.interface is not None and turn.confidence is not None:
        parts += [
            f'<span class="chip {turn.verdict}">{turn.verdict}</span>',
            f'<span class="bar"><i style="width:{100 * turn.confidence:.1f}%"></i>'
            f'<b style="left:{100 * min(threshold, 1.0):.1f}%"></b></span>',
            f"{turn.confidence:.2f}",
        ]
    parts.append(_RIGHT if turn.correct else _WRONG)
    if turn.turn == one.observed:
        parts.append(f'<span class="stop">{"STOP" if one.stopped_early else "OUT OF TURNS"}</span>')
    if returned and one.returned != one.observed:
        parts.append('<span class="stop">RETURNED</span>')
    tokens = f"{turn.prompt_tokens:,} + {turn.completion_tokens:,} tokens"
    parts.append(f'<span class="grey">{tokens}</span>')
    if turn.truncated:
        parts.append('<span class="tag truncated">truncated</span>')
    if malformed(turn.text, one.interface):
        parts.append('<span class="tag malformed">malformed self-check</span>')
    answer = _said(turn.answer)
    changed = before is not None and answer != _said(before.answer)
    style = ' class="changed" title="another answer than the turn before"' if changed else ""
    kind = "turn" if not returned else "turn returned" if turn.correct else "turn returned bad"
    return (
        f'<section class="{kind}"><header>{" ".join(parts)}</header>'
        f'<p class="answer">answer: <code{style}>{_long(answer, _ANSWER, 0)}</code></p>'
        f"<pre>{_long(turn.text)}</pre></section>"
    )


def _unused(turns: Sequence[TurnRecord]) -> Iterable[str]:
    """Turns that were recorded behind the stop, in one line."""
    if turns:
        marks = " &#183; ".join(
            f"{turn.turn} {_mark(turn.correct)}"
            + ("" if turn.confidence is None else f" {turn.verdict} {turn.confidence:.2f}")
            for turn in turns
        )
        yield f'<p class="grey">recorded after the stop, not used: {marks}</p>'


def _mark(correct: bool | None) -> str:
    return (
        '<span class="right">&#10003;</span>' if correct else '<span class="wrong">&#10007;</span>'
    )


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _long(text: str, head: int = _HEAD, tail: int = _TAIL) -> str:
    """A text of bounded length as HTML; what is left out is counted."""
    start, end, left_out = clip(text, head, tail)
    if not left_out:
        return visible(start)
    note = f'<span class="grey">\n[{left_out:,} characters left out]\n</span>'
    return f"{visible(start)}{note}{visible(end)}"
