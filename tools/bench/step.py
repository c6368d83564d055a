"""One whole optimizer step against TRL's GRPOTrainer: rollout, rewards, update.

    pip install trl==1.16.0      # beside the project; it moves none of the project's versions
    python -m tools.bench step --out step.json

    python3 -m venv trl && trl/bin/pip install -e . trl==1.16.0      # or apart from it
    python -m tools.bench step --out step.json --trl-python trl/bin/python

Both sides train the embedded policy on the same machine, with the same problems, rewards, limits,
loss, reference (beta 0.1), clipping and AdamW, in fp32; what a step is stands in
``step_workload.py``. Each side uses its own ordinary trainer: ``SVRTrainer.fit`` with
``SVRModule``, ``GRPOTrainer.train`` with transformers generation and gradient checkpointing
switched off. Neither logs, evaluates or saves. TRL trains on all that it generates, and SVR on the
last of three turns, so that there are three ways to make the work equal:

three-turns    the real step: 96 trajectories of three turns, trained on the last one. TRL goes
               through its ``rollout_func``: three batches that it generates itself, one by one.
one-turn       96 completions, all of them trained: TRL's own loop, without a rollout function.
one-turn-full  the same without stop tokens, so that every completion has exactly 96 tokens.

Tokens are counted on both sides and printed. In the first two the sides sample freely, so that the
counts agree but for chance. Processes alternate (ours, TRL, ours, ...); a pair's ratio is that of
its two medians over the steps after the warm-up; below 1 ours is faster. Processor seconds tell
more than seconds where the machine has other work. TRL's colocated vLLM is not among the sides: on
a CPU it cannot push weights, because vLLM has packed its linear layers by then.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ARRANGEMENTS: dict[str, list[str]] = {
    "three-turns": ["--turns", "3"],
    "one-turn": ["--turns", "1"],
    "one-turn-full": ["--turns", "1", "--full-length"],
}
SIDES = {"ours": "tools.bench.svr_step", "trl": "tools.bench.trl_step"}
TOKENS = ("prompt_tokens", "generated_tokens", "trained_tokens")
SECONDS = ("seconds", "rollout", "update", "processor_seconds")


def side_command(side: str, arrangement: str, options: argparse.Namespace) -> list[str]:
    """The command of one process, but for where it writes."""
    python = options.trl_python if side == "trl" else sys.executable
    return [
        *(python, "-m", SIDES[side], *ARRANGEMENTS[arrangement]),
        *("--micro-batches", str(options.micro_batches)),
        *("--steps", str(options.warmup + options.steps), "--seed", str(options.seed)),
    ]


def run(command: list[str], threads: int) -> dict[str, Any]:
    """Run one process and read what it noted; what it prints is shown if it fails."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        done = subprocess.run(
            [*command, "--out", str(out)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode or not out.is_file():
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")
        return dict(json.loads(out.read_text()))


def figures(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Median times and mean token counts of one process's steps."""
    rows = [{**step, "update": step["seconds"] - step["rollout"]} for step in steps]
    result = {key: median(row[key] for row in rows) for key in SECONDS}
    return result | {key: sum(row[key] for row in rows) / len(rows) for key in TOKENS}


def compare(arrangement: str, options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two sides and sum up."""
    result: dict[str, Any] = {
        "commands": {s: shlex.join(side_command(s, arrangement, options)) for s in SIDES},
        "versions": {},
        "pairs": [],
    }
    for number in range(1, options.pairs + 1):
        pair = {}
        for side in SIDES:
            noted = run(side_command(side, arrangement, options), options.threads)
            result["versions"][side] = noted["versions"]
            pair[side] = {"steps": noted["steps"], **figures(noted["steps"][options.warmup :])}
        ours, trl = pair["ours"], pair["trl"]
        pair["ratio"] = {key: ours[key] / trl[key] for key in (*SECONDS, *TOKENS)}
        result["pairs"].append(pair)
        print(
            f"{arrangement}, pair {number}: ours {ours['seconds']:.2f} s, "
            f"TRL {trl['seconds']:.2f} s, ratio {pair['ratio']['seconds']:.2f}",
            flush=True,
        )
    keys = (*SECONDS, *TOKENS)
    result["median"] = {
        side: {key: median(pair[side][key] for pair in result["pairs"]) for key in keys}
        for side in (*SIDES, "ratio")
    }
    return result


def print_report(arrangement: str, result: dict[str, Any]) -> None:
    """One arrangement as a table, with both commands."""
    print(f"\n{arrangement}: medians over {len(result['pairs'])} pairs, per optimizer step")
    for command in result["commands"].values():
        print(f"  {command}")
    print(f"{'':20}{'ours':>10}{'TRL':>10}{'ratio':>8}")
    for key in (*SECONDS, *TOKENS):
        ours, trl, ratio = (result["median"][side][key] for side in ("ours", "trl", "ratio"))
        form = "10.2f" if key in SECONDS else "10.0f"
        print(f"{key.replace('_', ' '):20}{ours:{form}}{trl:{form}}{ratio:8.2f}")


def hardware(threads: int) -> dict[str, Any]:
    """The machine in a few words."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads_per_process": threads,
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def main() -> None:
    """Measure and report."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--arrangements", nargs="+", choices=list(ARRANGEMENTS), default=list(ARRANGEMENTS)
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="measured steps per process")
    parser.add_argument("--warmup", type=int, default=2, help="steps before these")
    parser.add_argument("--micro-batches", type=int, default=4, help="per step, on both sides")
    parser.add_argument("--threads", type=int, default=1, help="OpenMP threads of each process")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    machine = hardware(options.threads)
    results = {name: compare(name, options) for name in options.arrangements}
    for name, result in results.items():
        print_report(name, result)
    if options.out:
        report = {"command": shlex.join(sys.argv), "hardware": machine, "results": results}
        options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
