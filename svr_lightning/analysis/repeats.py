"""Problems that are in a log more than once, under different ids and in different clusters."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from svr_lightning.analysis.table import TurnTable

_FAR_MORE, _MANY = 5, 0.05
"""How many times as often as by chance, and in which share of the problems, turns must repeat."""


def independence_notes(
    tables: Mapping[str, TurnTable], questions: Mapping[tuple[str, str], str | None]
) -> Iterator[str]:
    """Why problems of different clusters may be one problem: a line for each data set, or for all.

    Args:
        tables: the recorded turns of each data set.
        questions: as far as they are known, by data set and id.
    """
    for name, table in tables.items():
        asked = [questions.get((name, problem)) for problem in table.ids]
        count, what = _repeated(table, asked), "have the question of another one"
        if not (count or all(asked)):
            count = _repeated_turns(table)
            what = "have the confidences, labels and tokens of another one, far more than by chance"
        if count:
            yield (
                f"{name}: {count} of {len(asked)} problems {what}. The promise counts them as "
                "independent: give variants of one problem the same cluster"
            )
    asked_in = {(name, question) for (name, _), question in questions.items() if question}
    places = Counter(question for _, question in asked_in)
    if shared := sum(count > 1 for count in places.values()):
        yield (
            f"{shared} questions are in several data sets. The promise counts them as "
            "independent: leave each in one data set"
        )


def _repeated(table: TurnTable, keys: list[str | None]) -> int:
    """How many problems have the key of a problem of another cluster; None is no key."""
    pairs = set(zip(keys, table.cluster.tolist(), strict=True))
    clusters = Counter(key for key, _ in pairs if key is not None)
    return sum(key is not None and clusters[key] > 1 for key in keys)


def _repeated_turns(table: TurnTable) -> int:
    """How many problems repeat all turns of another cluster's, if chance cannot explain it.

    Each problem has a coarse key, its labels and its confidences to two decimals, and details: the
    further decimals and the tokens. How often details agree by chance is seen in pairs of different
    coarse keys, none of which is one problem. Where all confidences are next to 0 or 1,
    the same ones are no surprise.
    """
    keys = set()
    rows = []
    for index, size in enumerate(table.length.tolist()):
        confidence = table.confidence[index, :size]
        cents = np.rint(confidence * 100)
        if ((cents < 3) | (cents > 97)).all():
            continue
        coarse = (*cents.tolist(), *table.correct[index, :size].tolist())
        rest = np.round(confidence * 100 - cents, 7) + 0.0
        detail = (*rest.tolist(), *table.completion_tokens[index, :size].tolist())
        keys.add((int(table.cluster[index]), coarse, detail))
        rows.append((coarse, detail))
    alike = _pairs(coarse for _, coarse, _ in keys)
    details = _pairs(detail for _, _, detail in keys)
    both = _pairs((coarse, detail) for _, coarse, detail in keys)
    chance = (details - both + 1) / (len(keys) * (len(keys) - 1) / 2 - alike + 1)
    shared = Counter((coarse, detail) for _, coarse, detail in keys)
    repeated = sum(shared[row] > 1 for row in rows)
    if both > _FAR_MORE * alike * chance and repeated > _MANY * len(table.ids):
        return repeated
    return 0


def _pairs(values: Iterator[object]) -> float:
    """How many pairs of equal values there are."""
    return sum(count * (count - 1) / 2 for count in Counter(values).values())
