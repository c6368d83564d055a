"""The contents of ``results.json``, from the recorded turns of every row. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.miniature import summary
from experiments.miniature.budgets import Families, budget_entries, options_of
from experiments.miniature.recordings import Seeds, same_problems
from experiments.miniature.rows import HORIZON, VOTE_PAPER, Row
from experiments.miniature.summary import Answers, Draws, Frontier
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import ORACLE
from svr_lightning.analysis.table import Endings, TurnTable

REFERENCE = "svr"
"""The row that all others are compared with."""
Entry = dict[str, Any]


def summarise(rows: Sequence[Seeds]) -> tuple[list[Entry], Entry]:
    """One entry per row in the order of the plan, majority voting behind the row it is over.

    Returns:
        The entries, and :func:`~experiments.miniature.budgets.budget_entries` of all rows.

    Raises:
        ConfigError: if two rows were asked different problems.
    """
    reference = next((row for row in rows if row.row.name == REFERENCE), None)
    stops = [(summary.stop_families(one.greedy), sampled_families(one)) for one in rows]
    wholes = [options_of(one.row.title, found) for one, (found, _) in zip(rows, stops, strict=True)]
    options = next((w for one, w in zip(rows, wholes, strict=True) if one is reference), None)
    entries: list[Entry] = []
    for seeds, families, whole in zip(rows, stops, wholes, strict=True):
        same_problems(rows[0].greedy[0].ids, seeds.greedy[0].ids, seeds.row.name)
        drawn = summary.draws(summary.clusters(seeds.greedy[0]), len(seeds.seeds))
        own = [(row_entry(seeds, *families, drawn), answers(seeds), whole)]
        for k, voted in seeds.votes.items():
            alone = Frontier(names=(f"{k} votes",), answers=(voted,))
            own.append((vote_entry(seeds, k, voted, drawn), voted, alone))
        for entry, returned, theirs in own:
            if reference and options and seeds is not reference:
                entry[f"versus_{REFERENCE}"] = versus(reference, seeds, returned, options, theirs)
            entries.append(entry)
    sampled = [found for _, found in stops]
    return entries, budget_entries(list(zip(rows, wholes, sampled, strict=True)))


def sampled_families(seeds: Seeds) -> Families:
    """The families of stopping rules on a row's sampled turns; none where none were sampled."""
    return summary.stop_families(seeds.sampled) if seeds.sampled else {}


def row_entry(seeds: Seeds, families: Families, sampled: Families, drawn: Draws) -> Entry:
    """Greedy and sampled metrics of a row, from its stopping rules on greedy and sampled turns."""
    fixed = summary.mean_over_seeds([summary.budget_ratios(table) for table in seeds.greedy], drawn)
    best = max(fixed, key=lambda k: (fixed[k]["mean"], -int(k)))
    return {
        **greedy_entry(seeds, drawn),
        "fixed": {k: fixed[k]["mean"] for k in fixed},
        "fixed_tokens": {k: _mean_tokens(seeds.greedy, int(k)) for k in fixed},
        "best_fixed": {"budget": int(best), **fixed[best]},
        "stops": stops_entry(seeds, families, sampled, drawn),
        "changes": changes_entry(seeds.greedy, drawn),
        "sampled": sampled_entry(seeds, drawn),
    }


def greedy_entry(seeds: Seeds, drawn: Draws) -> Entry:
    """A row's identity and its greedy metrics under its own protocol."""
    row, pairs = seeds.row, _own_protocol(seeds.greedy)
    greedy = summary.mean_over_seeds([summary.ratios_of(*pair) for pair in pairs], drawn)
    greedy["auroc"] = summary.auroc_over_seeds(pairs, drawn)
    return {
        **_identity(row, row.name, row.title),
        "paper": _paper(*row.paper) if row.paper else None,
        "trained_seeds": list(seeds.seeds) if row.trained else [],
        "problems": len(seeds.greedy[0].ids),
        "greedy": _applicable(row, greedy),
    }


def stops_entry(seeds: Seeds, families: Families, sampled: Families, drawn: Draws) -> list[Entry]:
    """Each family of stopping rules at the row's own tokens; none for single turns.

    Of fresh turns the sampled ones, since greedy ones would repeat the first. Settings are chosen
    on one half of the clusters and measured on the other.
    """
    own = answers(seeds)
    if seeds.row.fresh and seeds.sampled:
        families = sampled
        own = summary.answers_of(*zip(*_own_protocol(seeds.sampled), strict=True))
    elif seeds.greedy[0].correct.shape[1] == 1:
        return []
    cluster = summary.clusters(seeds.greedy[0])
    return [
        {
            "name": name,
            "reads_labels": name == ORACLE,
            "at_own_cost": summary.at_cost(options, own, cluster, drawn),
        }
        for name, options in families.items()
    ]


def sampled_entry(seeds: Seeds, drawn: Draws) -> Entry:
    """Sampled metrics under the row's protocol, and of each turn without stopping.

    Of turns, those of training: how many are right, and how well they are checked.
    """
    own = [summary.ratios_of(*pair) for pair in _own_protocol(seeds.sampled)]
    returned = summary.mean_over_seeds(own, drawn)
    tables = seeds.sampled
    budgets = [summary.budget_ratios(table) for table in tables]
    turns = [{k: v for k, v in of.items() if int(k) <= HORIZON} for of in budgets]
    pairs = [(table, replay(table, None, _few(table))) for table in tables]
    checks = summary.mean_over_seeds([summary.ratios_of(*pair) for pair in pairs], drawn)
    checks["auroc"] = summary.auroc_over_seeds(pairs, drawn)
    kept = {name: checks[name] for name in ("auroc", "brier", "overconfidence")}
    return {
        **{name: returned[name] for name in ("accuracy", "turns", "tokens")},
        "each_turn": summary.mean_over_seeds(turns, drawn),
        "changes": changes_entry(tables, drawn),
        **_applicable(seeds.row, kept),
    }


def changes_entry(tables: Sequence[TurnTable], drawn: Draws) -> Entry:
    """Means over seeds of ``summary.change_ratios``; none for single turns."""
    ratios = [summary.change_ratios(table) for table in tables]
    return summary.mean_over_seeds(ratios, drawn) if ratios and ratios[0] else {}


def vote_entry(seeds: Seeds, k: int, voted: Answers, drawn: Draws) -> Entry:
    """Majority voting of ``k`` samples as a row of its own."""
    one = np.ones(voted.right.shape[1])
    runs = [
        {"accuracy": (right, one), "tokens": (tokens, one), "tokens_per_correct": (tokens, right)}
        for right, tokens in zip(voted.right, voted.tokens, strict=True)
    ]
    name = f"{seeds.row.name}_maj{k}"
    return {
        **_identity(seeds.row, name, f"{seeds.row.title} Maj@{k}"),
        "paper": _paper("majority_vote", f"GRPO Maj@{k}", VOTE_PAPER.get(k)),
        "trained_seeds": list(seeds.seeds),
        "problems": len(one),
        "greedy": summary.mean_over_seeds(runs, drawn),
    }


def versus(
    reference: Seeds, seeds: Seeds, other: Answers, options: Frontier, others: Frontier
) -> Entry:
    """The reference minus another row over their common seeds, and either at the other's cost.

    Args:
        reference: the row to compare with.
        seeds: the other row.
        other: what that one returned.
        options: all that the reference can return.
        others: all that the other row can.
    """
    common = seeds.seeds if seeds.row.trained else reference.seeds
    common = tuple(seed for seed in reference.seeds if seed in common)
    if not common:
        return {}
    ours = [reference.seeds.index(seed) for seed in common]
    theirs = [seeds.seeds.index(seed) if seeds.row.trained else 0 for seed in common]
    cluster = summary.clusters(seeds.greedy[0])
    drawn = summary.draws(cluster, len(common))
    mine, yours = _chosen(answers(reference), ours), _chosen(other, theirs)
    return {
        "seeds": list(common),
        **summary.compare(mine, yours, drawn),
        f"{REFERENCE}_at_its_cost": summary.at_cost(_seeds(options, ours), yours, cluster, drawn),
        f"at_{REFERENCE}s_cost": summary.at_cost(_seeds(others, theirs), mine, cluster, drawn),
    }


def answers(seeds: Seeds) -> Answers:
    """[S, N] what a row returned under its own protocol."""
    return summary.answers_of(*zip(*_own_protocol(seeds.greedy), strict=True))


def _paper(table: str, row: str, accuracy: float | None) -> Entry | None:
    if accuracy is None:
        return None
    return {"table": table, "row": row, "all7_accuracy": accuracy}


def _few(table: TurnTable) -> int:
    """The number of turns of training, or 1 for single-turn rows."""
    return min(HORIZON, int(table.correct.shape[1]))


def _own_protocol(tables: Sequence[TurnTable]) -> list[tuple[TurnTable, Endings]]:
    return [(table, table.outcome) for table in tables]


def _mean_tokens(tables: Sequence[TurnTable], budget: int) -> float:
    """Tokens per problem of the first ``budget`` turns."""
    spent = [(t.prompt_tokens + t.completion_tokens)[:, :budget].sum(1).mean() for t in tables]
    return float(np.mean(spent))


def _chosen(values: Answers, rows: Sequence[int]) -> Answers:
    return Answers(right=values.right[list(rows)], tokens=values.tokens[list(rows)])


def _seeds(options: Frontier, rows: Sequence[int]) -> Frontier:
    return replace(options, answers=tuple(_chosen(option, rows) for option in options.answers))


def _identity(row: Row, name: str, title: str) -> Entry:
    return {
        "name": name,
        "title": title,
        "group": row.group,
        "privileged": row.uses_labels,
        "self_check": row.interface,
    }


def _applicable(row: Row, metrics: Mapping[str, Any]) -> Entry:
    """The metrics that apply: a row without a self-check has none of its metrics."""
    absent: set[str] = set()
    if row.interface is None or row.single:
        absent |= {"pse", "esr"}
    if row.interface not in ("joint", "confidence"):
        absent |= {"brier", "auroc"}
    if row.interface not in ("joint", "verdict"):
        absent |= {"overconfidence"}
    return {name: value for name, value in metrics.items() if name not in absent}
