"""How many answers may be accepted if at most a tenth, or a fifth, of them is wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from svr_lightning.analysis.certificates import binomial_cdf
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import families
from svr_lightning.analysis.table import TurnTable

DELTA = 0.1
"""A certificate holds with probability 1 - DELTA."""


def certificates(run: TurnTable) -> Iterator[dict[str, Any]]:
    """What each family of K stopping rules certifies on fresh turns, over halves of J = 20 splits.

    A rule is certified on one half of N problems. On the other half turns are generated until one
    is accepted. Where nothing is certified, no answer is.
    """
    turns = run.max_turns
    summed = replace(run, solution_logprob=run.solution_logprob * run.completion_tokens)
    ways = [(name, run, rules) for name, rules in families(run, turns, [turns]).items()]
    rules = families(summed, turns, [turns])["solution's log-probability"]
    ways.append(("solution's log-probability, summed", summed, rules))
    splits = [split_clusters(run.cluster, 0.5, number) for number in range(20)]
    here = np.concatenate([splits, np.invert(splits)]).astype(int)  # [2J, N]
    for name, table, rules in ways:
        ended = [replay(table, rule, turns) for rule, _ in rules]
        accepted = np.array([one.accepted for one in ended], int)  # [K, N]
        wrong = accepted * [~one.right_at(one.returned) for one in ended]
        count = accepted @ here.T  # [K, 2J]
        for limit in (0.1, 0.2):
            holds = np.vectorize(binomial_cdf)(wrong @ here.T, count, limit) <= DELTA / len(rules)
            best = np.where(holds, count, -1).argmax(0)
            sure = holds.any(0)
            rates = {"way": name, "limit": limit, "certified": sure.mean()}
            for key, column in ("accepted", accepted), ("wrong", wrong):
                rates[key] = (column[best] * (1 - here)).sum(1) @ sure / (1 - here).sum()
            yield rates
