"""Which figures a report has, each with its caption and numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from svr_lightning.analysis.table import pool
from svr_lightning.errors import ConfigError
from svr_lightning.report import figures_accuracy as accuracy
from svr_lightning.report import figures_training as training
from svr_lightning.report import figures_turns as turns
from svr_lightning.report.drawing import Draw
from svr_lightning.report.numbers import Numbers
from svr_lightning.report.runs import Method, Votes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure: ``draw(numbers)`` draws it."""

    name: str
    """Name of its files, without extension."""
    caption: str
    numbers: Numbers
    """Plain JSON."""
    draw: Draw
    method: int | None = None
    """Which method it is about, from 0; None for a comparison."""


def all_figures(
    methods: Sequence[Method], votes: Votes, rules: Mapping[int, Numbers] | None = None
) -> tuple[list[Plot], list[str]]:
    """Every figure that the runs allow, and why others are missing."""
    several = any(len(method.runs) > 1 for method in methods)
    spread = "; of several seeds, mean \u00b1 standard deviation" if several else ""
    figures = [
        Plot(
            name="01_frontier",
            caption=f"Accuracy against tokens. Crosses are 95 % intervals over problems{spread}.",
            numbers=accuracy.frontier_numbers(methods, votes),
            draw=accuracy.draw_frontier,
        ),
    ]
    notes = []
    for number, method in enumerate(methods):
        figures += _of_recording(method, number, (rules or {}).get(number))
        if not method.runs[0].complete and method.runs[0].max_turns > 1:
            notes.append(
                f"{method.name}: no fixed budgets and no thresholds, because its trajectories end "
                "where they stopped; record every turn with --model.evaluation.adaptive false."
            )
        if not method.runs[0].self_checks:
            notes.append(f"{method.name}: no figures of confidence, because no turn states one.")
        try:
            curves = list(_of_training(method, number))
        except ConfigError as error:
            notes.append(f"{method.name}: no training curves; {error}.")
            continue
        figures += curves
        if not curves:
            notes.append(f"{method.name}: no training curves, because it has no metrics.csv.")
    return figures, notes


def _of_recording(method: Method, number: int, rules: Numbers | None) -> Iterator[Plot]:
    """The figures of a method's first seed, its data sets pooled."""
    run = method.runs[0]
    table = pool(run.tables)
    seed = f", seed {run.seed}" if len(method.runs) > 1 else ""
    pooled = f", {len(run.tables)} data sets pooled" if len(run.tables) > 1 else ""
    turned = "All recorded turns" if run.complete else "Turns up to the stop"

    def plot(name: str, caption: str, numbers: Numbers, draw: Draw) -> Plot:
        caption = f"{method.name}{seed}: {caption}."
        name = f"{name}_{number + 1}"
        return Plot(name=name, caption=caption, numbers=numbers, draw=draw, method=number)

    if run.complete:
        caption = "Every fixed budget, and adaptive inference where answers are self-checked"
        yield plot("02_budgets", caption, accuracy.budget_numbers(run), accuracy.draw_budgets)
    if rules:
        caption = f"Stopping rules over tokens{pooled}; settings are the best on these problems"
        numbers = accuracy.rule_numbers(run, rules)
        yield plot("12_stopping_rules", caption, numbers, accuracy.draw_rules)
    if run.has_thresholds:
        numbers = accuracy.threshold_numbers(run)
        yield plot("03_thresholds", "Other thresholds", numbers, accuracy.draw_thresholds)
    if run.self_checks:
        caption = f"Is the confidence honest? Share of right answers at each confidence{pooled}"
        numbers = turns.reliability_numbers(table)
        yield plot("04_reliability", caption, numbers, turns.draw_reliability)
    if run.max_turns > 1:
        caption = f"Does refinement fix or break answers? {turned}{pooled}"
        numbers = turns.transition_numbers(table)
        yield plot("06_transitions", caption, numbers, turns.draw_transitions)
    if run.stops:
        caption = f"Where trajectories end{pooled}; orange is the premature stop error"
        numbers = turns.stop_numbers(table)
        yield plot("07_stop_times", caption, numbers, turns.draw_stops)
    if run.stops and run.self_checks:
        caption = f"Does confidence follow correctness over turns? {turned}{pooled}"
        numbers = turns.by_turn_numbers(table)
        yield plot("10_confidence_by_turn", caption, numbers, turns.draw_by_turn)


def _of_training(method: Method, number: int) -> Iterator[Plot]:
    """The training curves of a method.

    Raises:
        ConfigError: naming a log that cannot be read.
    """
    logs = [log for run in method.runs for source in run.sources[:1] if (log := source.metrics)]
    found = training.read_trainings(logs)
    seeds = f" Bands are least to greatest of {len(found)} seeds." if len(found) > 1 else ""
    rewards, health = training.reward_numbers(found), training.health_numbers(found)
    for name, caption, numbers, draw in (
        ("08_rewards", "Reward terms over training.", rewards, training.draw_rewards),
        ("09_training", f"Training health.{seeds}", health, training.draw_health),
    ):
        if numbers:
            name, caption = f"{name}_{number + 1}", f"{method.name}: {caption}"
            yield Plot(name=name, caption=caption, numbers=numbers, draw=draw, method=number)
