"""A pretrained language model through the whole method: SmolLM2-135M-Instruct on two tasks.

    python -m tools.real_run            # on one GPU
    python -m tools.real_run --smoke    # minutes on two CPU cores; its figures mean nothing

Converts the model (tools.real_model), teaches it each task's format by demonstrations
(warm start), trains that with SVR, SVR+ and GRPO-MT, records every turn on held-out problems
before and after, replays stopping rules at equal tokens (sweep) and writes a report per task. Every
step is a command in a process of its own, with its log and its command line under commands/. What
is done is kept: start it again and it goes on. Leaves summary.md and summary.json.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from experiments.miniature.cells import Runner
from experiments.miniature.plan import Cell, Command

from experiments.miniature.__main__ import check_checkout
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from tools.real_model import missing_package

TASKS = {
    "countdown": ("configs/countdown_tiny.yaml", "countdown", "embedded:countdown-tiny"),
    "word_problems": ("configs/arithmetic_tiny.yaml", "gsm8k", "embedded:arithmetic-tiny"),
}
"""By what the demonstrations are called: a run's configuration, the task, and its problems."""
METHODS = {"SVR": "svr", "SVR+": "svr_plus", "GRPO-MT": "grpo_mt"}
REAL, SMOKE = "configs/experiments/real.yaml", "configs/experiments/real_smoke.yaml"
ONE_GPU = "configs/hardware/1gpu.yaml"
EVALUATIONS = {
    "warm start": ("svr", "before"),
    "warm start, neutral prompts": ("grpo_mt", "before"),
    **{title: (name, "after") for title, name in METHODS.items()},
}
"""Of each task: the rows of its tables, and where their recordings lie."""
OWN = EVALUATIONS["SVR"]
"""What it spends with its own stopping rule is the budget of all others."""


def model(out: Path) -> Cell:
    """The conversion."""
    command = Command(
        name="convert",
        folder=str(out),
        module="tools.real_model",
        arguments=("--out", f"{out}/model"),
        result=f"{out}/model/config.json",
    )
    return Cell(name="model", commands=(command,))


def warm_start(out: Path, task: str, options: argparse.Namespace) -> Cell:
    """Supervised training on a task's demonstrations."""
    folder = out / task
    scale = ("--steps", "2", "--batch", "2") if options.smoke else ("--steps", "600")
    arguments = (
        *("--policy", f"{out}/model", "--task", task, "--out", f"{folder}/warmstart"),
        *(*scale, "--rate", "1e-4", "--device", options.device),
    )
    command = Command(
        name="warmstart",
        folder=str(folder),
        module="experiments.warmstart",
        arguments=arguments,
        result=f"{folder}/warmstart/config.json",
    )
    return Cell(name=f"{task}/warmstart", commands=(command,))


def training(out: Path, task: str, method: str, options: argparse.Namespace) -> Cell:
    """A method's training, with the held-out problems before and after it."""
    folder = out / task / method
    config, grader, path = TASKS[task]
    layers = [config, *[f"configs/methods/{method}.yaml"] * (method != "svr"), REAL]
    layers += [SMOKE] * options.smoke + [ONE_GPU] * (options.device == "cuda")
    arguments = (
        *("fit", *(part for layer in layers for part in ("--config", layer))),
        *("--model.policy.path", f"{out}/{task}/warmstart"),
        "--data.test",
        f"[{{name: {task}, task: {grader}, path: '{path}', split: test, limit: 256}}]",
        *("--trainer.default_root_dir", str(folder)),
    )
    command = Command(
        name="fit",
        folder=str(folder),
        arguments=arguments,
        result=f"{folder}/policy/config.json",
        checkpoint=f"{folder}/checkpoints/last.ckpt",
    )
    return Cell(name=f"{task}/{method}", commands=(command,))


def sweeps(out: Path, task: str, budget: float | None) -> list[Cell]:
    """Stopping rules on the recorded turns: SVR's own first, then all within its tokens."""
    commands: dict[str, tuple[Command, ...]] = {}
    for method, when in EVALUATIONS.values():
        if (budget is None) != ((method, when) == OWN):
            continue
        folder = out / task / method
        samples = f"{folder}/eval/{when}/samples.jsonl"
        limit = () if budget is None else ("--budget", f"{budget:.1f}")
        command = Command(
            name=f"sweep_{when}",
            folder=str(folder),
            arguments=("replay", samples, "--compare-stops", *limit),
            result=f"{folder}/eval/{when}/replay/replay.json",
        )
        commands[method] = (*commands.get(method, ()), command)
    return [Cell(name=f"{task}/{name}", commands=steps) for name, steps in commands.items()]


def report(out: Path, task: str) -> Cell:
    """Figures, tables and a page of all policies on a task."""
    runs = (f"{title}={out}/{task}/{m}/eval/{when}" for title, (m, when) in EVALUATIONS.items())
    command = Command(
        name="report",
        folder=str(out / task),
        arguments=("report", *runs, "--out", f"{out}/{task}/report"),
        result=f"{out}/{task}/report/index.html",
    )
    return Cell(name=f"{task}/report", commands=(command,))


def phases(out: Path, options: argparse.Namespace) -> Iterator[list[Cell]]:
    """Cells that need one another's results, phase by phase; within one they are independent."""
    yield [model(out)]
    yield [warm_start(out, task, options) for task in options.tasks]
    yield [training(out, t, m, options) for t in options.tasks for m in METHODS.values()]
    yield [cell for task in options.tasks for cell in sweeps(out, task, None)]
    budgets = {task: own_stop(out, task)["avg_total_tokens"] for task in options.tasks}
    yield [cell for task in options.tasks for cell in sweeps(out, task, budgets[task])]
    yield [report(out, task) for task in options.tasks]


def read_sweep(out: Path, task: str, method: str, when: str) -> dict[str, Any]:
    """What the sweep of a recording found."""
    path = out / task / method / "eval" / when / "replay" / "replay.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def own_stop(out: Path, task: str) -> dict[str, Any]:
    """The metrics of SVR with its own stopping rule."""
    found = read_sweep(out, task, *OWN)["operating_point"]["macro"]["all"]
    return dict(found)


def rows(out: Path, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One line per task, policy and way to stop."""
    for task in tasks:
        for title, (method, when) in EVALUATIONS.items():
            found = read_sweep(out, task, method, when)
            fixed = found["fixed"]
            points = {"one turn": fixed[0], f"{fixed[-1]['budget']} turns": fixed[-1]}
            if method != "grpo_mt":
                points["its own"] = found["operating_point"]
            for stop, point in points.items():
                values = point["macro"]["all"]
                (interval,) = (of["accuracy_ci95"] for of in point["datasets"].values())
                yield {
                    **{"task": task, "policy": title, "stop": stop, "budget": None},
                    **{name: values.get(name) for name in ("accuracy", "turns", "pse", "auroc")},
                    "tokens": values["avg_total_tokens"],
                    "ci95": interval,
                }
            for row in found["stops"]["rows"]:
                if row["name"] == found["stops"]["winner"]:
                    yield {
                        **{"task": task, "policy": title, "stop": f"best: {row['name']}"},
                        **{name: row[name] for name in ("accuracy", "ci95", "tokens")},
                        "budget": found["stops"]["budget"],
                    }


def steps(out: Path, task: str, method: str) -> int:
    """Optimizer steps of a training; ``trainer.max_time`` may have ended it early."""
    with (out / task / method / "metrics.csv").open(newline="") as stream:
        return max(int(row["step"]) for row in csv.DictReader(stream))


COLUMNS = (
    ("accuracy", "accuracy", "{:.3f}"),
    ("ci95", "95 %", "[{0[0]:.3f}, {0[1]:.3f}]"),
    ("tokens", "tokens", "{:.0f}"),
    ("turns", "turns", "{:.2f}"),
    ("pse", "PSE", "{:.3f}"),
    ("auroc", "AUROC", "{:.3f}"),
)


def summary_md(found: Sequence[dict[str, Any]], note: str) -> str:
    """The summary as Markdown."""
    lines = [
        note,
        "",
        f"| task | policy | stop | {' | '.join(head for _, head, _ in COLUMNS)} |",
        f"|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    for row in found:
        cells = [
            "-" if row.get(name) is None else form.format(row[name]) for name, _, form in COLUMNS
        ]
        lines.append(f"| {' | '.join([row['task'], row['policy'], row['stop'], *cells])} |")
    return "\n".join([*lines, ""])


def write_summary(out: Path, options: argparse.Namespace) -> str:
    """Write ``summary.json`` and ``summary.md``; returns the latter."""
    found = list(rows(out, options.tasks))
    seconds = {
        str(path.relative_to(out)): json.loads(path.read_text(encoding="utf-8"))["seconds"]
        for path in sorted(out.glob("**/commands/*.json"))
    }
    trained = {f"{t}/{m}": steps(out, t, m) for t in options.tasks for m in METHODS.values()}
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    note = (
        f"SmolLM2-135M-Instruct, {machine}, {sum(seconds.values()) / 60:.0f} minutes of commands. "
        f"Optimizer steps: {', '.join(f'{name} {count}' for name, count in trained.items())}. "
        "`best` is the most accurate stopping rule within the tokens that SVR takes with its own."
    )
    if options.smoke:
        note = f"A smoke run: it shows that the commands work; no figure means anything. {note}"
    write_json(
        out / "summary.json",
        {
            **{"machine": machine, "smoke": options.smoke, "seconds": seconds},
            **{"steps": trained, "rows": found},
        },
    )
    text = summary_md(found, note)
    write_file(out / "summary.md", [text])
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet; 0 is success, 1 a command that failed, 2 a fault of the user."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tools.real_run", description=__doc__, formatter_class=formatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, help="folder (runs/real or runs/real_smoke)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS], help="default: all")
    parser.add_argument("--smoke", action="store_true", help="one step, two problems")
    parser.add_argument(
        "--jobs", type=int, default=1 if cuda else 2, help="commands at the same time"
    )
    options = parser.parse_args(arguments)
    options.device = "cuda" if cuda else "cpu"
    out = options.out or Path("runs/real_smoke" if options.smoke else "runs/real")
    try:
        check_checkout()
        if problem := missing_package():
            raise ConfigError(problem)
        if not cuda and not options.smoke:
            raise ConfigError("no CUDA device is visible; on a CPU give --smoke")
        runner = Runner(say=lambda line: print(line, flush=True))
        for cells in phases(out, options):
            if runner.run(cells, options.jobs):
                return 1
    except ConfigError as error:
        print(f"tools.real_run: error: {error}", file=sys.stderr)
        return 2
    print(write_summary(out, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
