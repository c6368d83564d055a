"""Six training steps of every recipe and ablation, as hashes: did a change alter any result?

    python -m tools.parity --out before.json          # before a change
    python -m tools.parity --check before.json        # after it
    python -m tools.parity --check tools/results/parity.json --only svr grpo_mt

Each configuration layer trains the embedded policy for six optimizer steps, in one process with
one thread, and evaluates it on sixteen problems before and after. Four hashes per layer:

- rollouts: texts, labels, rewards and returns of every training trajectory;
- weights: the trained policy;
- samples: texts, answers and labels of every evaluated turn;
- results: the metrics of both evaluations.

Verdict and confidence, and the metrics computed from them, count only for methods whose policy
states them. Floating-point results depend on the processor and on the releases of torch and
transformers, which the manifest names: compare manifests of one machine.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from svr_lightning.files import write_json
from svr_lightning.row_files import file_rows
from tools.bench.workloads import this_machine

ROOT = Path(__file__).resolve().parents[1]
TEST = ROOT / "svr_lightning" / "tiny" / "countdown" / "test.jsonl"
FOLDERS = ("methods", "ablations")
NOT_A_METHOD = "countdown_single_turn"
"""A layer that only goes on top of another one."""
NO_SELF_CHECK = ("grpo", "gspo", "igrpo", "mlmt", "murphy", "oracle", "scrpo")
"""Beginnings of the names of layers whose policy states no verdict."""
STEPS = 6
TURN = ("turn", "text", "correct", "truncated", "completion_tokens")
CHECK = ("verdict", "confidence")
METRICS = (
    "n",
    "accuracy",
    "first_turn_accuracy",
    "any_turn_accuracy",
    "turns",
    "avg_prompt_tokens",
    "avg_completion_tokens",
    "avg_total_tokens",
)
CHECK_METRICS = ("esr", "pse", "verdict_accuracy", "auroc", "brier", "overconfidence")


def layers() -> dict[str, list[str]]:
    """The configuration layers by name, on top of the embedded run; ``svr`` has none."""
    paths = sorted(p for f in FOLDERS for p in (ROOT / "configs" / f).glob("*.yaml"))
    named = {path.stem: ["--config", str(path)] for path in paths if path.stem != NOT_A_METHOD}
    return {"svr": [], **named}


def hashes_of(name: str) -> dict[str, str]:
    """Train and evaluate one layer, and hash what it left.

    Raises:
        SystemExit: with the end of the run's output, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, rows = Path(folder, "run"), Path(folder, "rows.jsonl")
        problems = [
            {"id": f"row-{number}", "nums": row["nums"], "target": row["target"]}
            for number, (_, row) in enumerate([*file_rows(TEST)][::33][:16])
        ]
        rows.write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")
        source = f"[{{name: rows, task: countdown, path: {rows}}}]"
        command = [
            sys.executable,
            "-m",
            "svr_lightning",
            "fit",
            "--config",
            str(ROOT / "configs" / "countdown_tiny.yaml"),
            *layers()[name],
            "--trainer.default_root_dir",
            str(root),
            "--trainer.max_steps",
            str(STEPS),
            "--trainer.val_check_interval",
            str(STEPS),
            "--trainer.enable_progress_bar",
            "false",
            "--model.micro_batch_size",
            "8",
            "--data.problems_per_step",
            "2",
            "--data.val",
            source,
            "--data.test",
            source,
        ]
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        rollouts, samples, results = left(root, not name.startswith(NO_SELF_CHECK))
        return {
            "rollouts": digest(rollouts),
            "weights": weights(root / "policy"),
            "samples": digest(samples),
            "results": digest(results),
        }


def left(root: Path, checked: bool) -> tuple[list[Any], list[Any], list[Any]]:
    """Every training trajectory, every evaluated one, and the metrics of both evaluations."""

    def turns(record: dict[str, Any], *more: str) -> list[Any]:
        keys = (*TURN, *more, *(CHECK if checked else ()))
        return [[turn[key] for key in keys] for turn in record["turns"]]

    rollouts = [
        [r["step"], r["id"], r["sample"], r.get("parent"), r["return"], turns(r, "reward")]
        for r in read_lines(root / "rollouts.jsonl")
    ]
    samples, results = [], []
    for when in ("before", "after"):
        for r in read_lines(root / "eval" / when / "samples.jsonl"):
            shown = turns(r, "answer", "prompt_tokens")
            samples.append([when, r["id"], r["returned_turn"], r["stopped_early"], shown])
        text = (root / "eval" / when / "results.json").read_text(encoding="utf-8")
        for values in json.loads(text)["datasets"].values():
            metrics = (*METRICS, *(CHECK_METRICS if checked else ()))
            results.append([[name, values.get(name)] for name in metrics])
    return rollouts, samples, results


def weights(folder: Path) -> str:
    """Hash of every tensor's name and values, as float32."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in sorted(file.keys()):
                values = file.get_tensor(key).contiguous().view(-1).float().numpy()
                found.update(key.encode() + values.tobytes())
    return found.hexdigest()[:16]


def digest(value: Any) -> str:
    """Hash of plain values."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, without the header of versioned files."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            record = json.loads(line)
            if "id" in record:
                yield record


def main() -> int:
    """Hash the layers; with ``--check`` exit 1 if a hash differs from the manifest's."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools.parity", description=__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="write a manifest")
    parser.add_argument("--check", type=Path, help="compare with a manifest")
    parser.add_argument("--only", nargs="+", choices=[*layers()], metavar="LAYER")
    options = parser.parse_args()
    machine = {"cpu": this_machine()["hardware"]["name"], "torch": torch.__version__}
    machine["transformers"] = transformers.__version__
    found = {}
    for name in options.only or layers():
        found[name] = hashes_of(name)
        print(name, *(f"{key} {value}" for key, value in found[name].items()), flush=True)
    if options.out:
        write_json(options.out, {"machine": machine, "layers": found})
    if not options.check:
        return 0
    wanted = json.loads(options.check.read_text(encoding="utf-8"))
    if wanted["machine"] != machine:
        print(f"{options.check} was made on another machine: {wanted['machine']}", file=sys.stderr)
    known = wanted["layers"]
    odd = [
        f"{name}.{key}"
        for name, hashes in found.items()
        for key, value in hashes.items()
        if known.get(name, {}).get(key) != value
    ]
    print(f"differ: {', '.join(odd)}" if odd else f"{len(found)} layers are equal")
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main())
