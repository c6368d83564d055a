"""The trajectories of the page, turn by turn, and the filters above them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from svr_lightning.report.figure_names import apart, display, ordered
from svr_lightning.report.runs import Method
from svr_lightning.report.text import clip, visible
from svr_lightning.report.trajectories import CLASSES, Trajectory, choose, malformed, trajectories

FILTERS = {"kind": "show", "method": "method", "set": "data set"}
"""Groups of radio buttons, by the prefix of their ids."""
_HEAD, _TAIL = 1500, 2500
"""Characters shown of a long turn, from its beginning and its end."""
_NAME, _ANSWER = 80, 300
_RIGHT = '<span class="right">\u2713 right</span>'.encode("ascii", "xmlcharrefreplace").decode()
_WRONG = '<span class="wrong">\u2717 wrong</span>'.encode("ascii", "xmlcharrefreplace").decode()


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What the section of trajectories is made of; all of it is ready HTML or CSS but the names."""

    filters: dict[str, list[tuple[str, int]]]
    """{group: [(name, problems in the recording)]}; the first of a group shows everything."""
    items: list[str]
    css: str
    note: str


def listing(methods: Sequence[Method], most: int) -> Listed:
    """At most ``most`` trajectories per class and method, of each method's first seed."""
    found = [list(trajectories(method.runs[0])) for method in methods]
    names = ordered(one.record["dataset"] for rows in found for one in rows)
    kinds = list(CLASSES)
    total = sum(map(len, found))
    everything = [one for rows in found for one in rows]
    filters = {
        "kind": [
            ("all", total),
            *((CLASSES[k], sum(k in one.classes for one in everything)) for k in kinds),
        ],
        "method": [
            ("all", total),
            *((m.name, len(r)) for m, r in zip(methods, found, strict=True)),
        ],
        "set": [
            ("all", total),
            *(
                (display(name), sum(one.record["dataset"] == name for one in everything))
                for name in names
            ),
        ],
    }
    items = []
    for number, (method, rows) in enumerate(zip(methods, found, strict=True), start=1):
        for one in choose(rows, most):
            tokens = [f"method-{number}", f"set-{names.index(one.record['dataset']) + 1}"]
            tokens += [f"kind-{kinds.index(key) + 1}" for key in kinds if key in one.classes]
            label = method.name if len(methods) > 1 else ""
            items.append(_trajectory(one, tokens, label, method.runs[0].rule.threshold))
    note = (
        f"{len(items):,} of {total:,} trajectories are listed: at most {most} per method of each "
        "kind and of no kind, from the data sets in turn. Counts are of all of them."
    )
    if any(len(method.runs) > 1 for method in methods):
        note += " Of several seeds, the first."
    shown = {group: [(_named(n), c) for n, c in rows] for group, rows in filters.items()}
    return Listed(filters=shown, items=items, css=_css(shown), note=note)


def _named(name: str) -> str:
    """A name of bounded length, with its mark."""
    name, mark = apart(name)
    return clip(name, _NAME, 0)[0] + mark


def _css(filters: Mapping[str, Sequence[Any]]) -> str:
    """What each radio button hides, and how its label looks while it is chosen or focused."""
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
    observed = record["turns"][: one.observed]
    path = "".join(_mark(turn["correct"]) for turn in observed)
    tags = "".join(
        f'<span class="tag {k}">{v}</span>' for k, v in CLASSES.items() if k in one.classes
    )
    names = f"{display(record['dataset'])} / {record['id']}"
    head = [f'<span class="id">{visible(clip(names, _NAME, _NAME)[0])}</span>']
    head += [f'<span class="grey">{visible(_named(method))}</span>'] if method else []
    head += [f'<span class="path">{path}</span>', _RIGHT if one.right else _WRONG, tags]
    body = [f"<pre>{_long(record['question'])}</pre>"]
    body.append(
        f'<p class="answer">reference: <code>{_long(_said(record.get("reference")))}</code></p>'
    )
    if not observed:
        body.append(f'<p class="wrong">not run: {_long(_said(record.get("error")))}</p>')
    body.append('<div class="turns">')
    before = None
    for turn in observed:
        body.append(_turn(turn, one, before, threshold))
        before = turn
    body.append("</div>")
    body += _unused(record["turns"][one.observed :])
    inner = f"<summary>{' '.join(head)}</summary>{''.join(body)}"
    return f'<details class="t {" ".join(tokens)}">{inner}</details>'


def _turn(
    turn: Mapping[str, Any], one: Trajectory, before: Mapping[str, Any] | None, threshold: float
) -> str:
    returned = turn["turn"] == one.returned
    parts = [f"<b>turn {turn['turn']}</b>"]
    if one.interface is not None:
        parts += [
            f'<span class="chip {turn["verdict"]}">{turn["verdict"]}</span>',
            f'<span class="bar"><i style="width:{100 * turn["confidence"]:.1f}%"></i>'
            f'<b style="left:{100 * min(threshold, 1.0):.1f}%"></b></span>',
            f"{turn['confidence']:.2f}",
        ]
    parts.append(_RIGHT if turn["correct"] else _WRONG)
    if turn["turn"] == one.observed:
        parts.append(f'<span class="stop">{"STOP" if one.stopped_early else "OUT OF TURNS"}</span>')
    if returned and one.returned != one.observed:
        parts.append('<span class="stop">RETURNED</span>')
    tokens = f"{turn['prompt_tokens']:,} + {turn['completion_tokens']:,} tokens"
    parts.append(f'<span class="grey">{tokens}</span>')
    if turn["truncated"]:
        parts.append('<span class="tag truncated">truncated</span>')
    if malformed(turn["text"], one.interface):
        parts.append('<span class="tag malformed">malformed self-check</span>')
    answer = _said(turn.get("answer"))
    changed = before is not None and answer != _said(before.get("answer"))
    style = ' class="changed" title="another answer than the turn before"' if changed else ""
    kind = (
        "turn"
        + (" returned" if returned else "")
        + (" bad" if returned and not turn["correct"] else "")
    )
    return (
        f'<section class="{kind}"><header>{" ".join(parts)}</header>'
        f'<p class="answer">answer: <code{style}>{_long(answer, _ANSWER, 0)}</code></p>'
        f"<pre>{_long(turn['text'])}</pre></section>"
    )


def _unused(turns: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Turns that were recorded behind the stop, in one line."""
    if turns:
        marks = " &#183; ".join(
            f"{turn['turn']} {_mark(turn['correct'])} {turn['verdict']} {turn['confidence']:.2f}"
            for turn in turns
        )
        yield f'<p class="grey">recorded after the stop, not used: {marks}</p>'


def _mark(correct: bool) -> str:
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
