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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from svr_lightning.tiny.problems import generate
from tools.bench.workloads import hardware

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("methods", "ablations")
NOT_A_METHOD = "countdown_single_turn"
"""A layer that only goes on top of another one."""
NO_SELF_CHECK = ("grpo", "gspo", "igrpo", "mlmt", "murphy", "oracle", "scrpo")
"""Beginnings of the names of layers whose policy states no verdict."""
STEPS = 6
TURN = ("turn", "text", "correct", "truncated", "completion_tokens")
CHECK = ("verdict", "confidence")
METRICS = (
    *("n", "accuracy", "first_turn_accuracy", "any_turn_accuracy", "turns"),
    *("avg_prompt_tokens", "avg_completion_tokens", "avg_total_tokens"),
)
CHECK_METRICS = ("esr", "pse", "verdict_accuracy", "auroc", "brier", "overconfidence")

Hashes = dict[str, str]


def layers() -> dict[str, list[str]]:
    """The configuration layers by name, on top of the embedded run; ``svr`` has none."""
    found: dict[str, list[str]] = {"svr": []}
    for path in sorted(p for f in FOLDERS for p in (ROOT / "configs" / f).glob("*.yaml")):
        if path.stem != NOT_A_METHOD:
            found[path.stem] = ["--config", str(path)]
    return found


def hashes_of(name: str, layer: list[str]) -> Hashes:
    """Train and evaluate one layer, and hash what it left.

    Raises:
        RuntimeError: with the end of the run's output, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, rows = Path(folder) / "run", Path(folder) / "rows.jsonl"
        write_problems(rows)
        command = [sys.executable, "-m", "svr_lightning", "fit"]
        command += ["--config", str(ROOT / "configs" / "countdown_tiny.yaml"), *layer]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [*command, *arguments(root, rows)],
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        checked = not name.startswith(NO_SELF_CHECK)
        return {
            "rollouts": digest(list(rollouts(root, checked))),
            "weights": weights(root / "policy"),
            "samples": digest(list(samples(root, checked))),
            "results": digest(list(results(root, checked))),
        }


def write_problems(path: Path) -> None:
    """Sixteen held-out problems to evaluate on."""
    rows = [
        {"id": f"row-{number}", "nums": row["nums"], "target": row["target"]}
        for number, row in enumerate(generate("test")[::33][:16])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def arguments(root: Path, rows: Path) -> list[str]:
    """What makes a layer's run short."""
    source = f"[{{name: rows, task: countdown, path: {rows}}}]"
    return [
        *("--trainer.default_root_dir", str(root), "--trainer.max_steps", str(STEPS)),
        *("--trainer.val_check_interval", str(STEPS), "--trainer.enable_progress_bar", "false"),
        *("--model.micro_batch_size", "8"),
        *("--data.problems_per_step", "2", "--data.val", source, "--data.test", source),
    ]


def rollouts(root: Path, checked: bool) -> Iterator[list[Any]]:
    """Texts, labels and returns of every training trajectory."""
    for r in read_lines(root / "rollouts.jsonl"):
        turns = [turn_values(t, checked, "reward") for t in r["turns"]]
        yield [r["step"], r["id"], r["sample"], r.get("parent"), r["return"], turns]


def samples(root: Path, checked: bool) -> Iterator[list[Any]]:
    """Texts and labels of every evaluated trajectory."""
    for when in ("before", "after"):
        for r in read_lines(root / "eval" / when / "samples.jsonl"):
            turns = [turn_values(t, checked, "answer", "prompt_tokens") for t in r["turns"]]
            yield [when, r["id"], r["returned_turn"], r["stopped_early"], turns]


def results(root: Path, checked: bool) -> Iterator[list[Any]]:
    """The metrics of both evaluations."""
    for when in ("before", "after"):
        path = root / "eval" / when / "results.json"
        for values in json.loads(path.read_text(encoding="utf-8"))["datasets"].values():
            yield [[k, values.get(k)] for k in (*METRICS, *(CHECK_METRICS if checked else ()))]


def turn_values(turn: dict[str, Any], checked: bool, *more: str) -> list[Any]:
    """The fields of a recorded turn that are compared."""
    return [turn[key] for key in (*TURN, *more, *(CHECK if checked else ()))]


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


def machine() -> dict[str, str]:
    """What floating-point results depend on."""
    return {
        "cpu": hardware()["name"],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main() -> int:
    """Hash the layers; with ``--check`` exit 1 if a hash differs from the manifest's."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools.parity", description=__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="write a manifest")
    parser.add_argument("--check", type=Path, help="compare with a manifest")
    parser.add_argument("--only", nargs="+", choices=[*layers()], metavar="LAYER")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (1)")
    options = parser.parse_args()
    chosen = {name: layer for name, layer in layers().items() if name in (options.only or layers())}
    manifest: dict[str, Any] = {"machine": machine(), "layers": {}}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, found in zip(chosen, pool.map(hashes_of, chosen, chosen.values()), strict=True):
            manifest["layers"][name] = found
            print(name, *(f"{key} {value}" for key, value in found.items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return report_differences(manifest, options.check) if options.check else 0


def report_differences(manifest: dict[str, Any], path: Path) -> int:
    """Print which hashes differ from a manifest's; 1 if any does."""
    wanted = json.loads(path.read_text(encoding="utf-8"))
    if wanted["machine"] != manifest["machine"]:
        print(f"{path} was made on another machine: {wanted['machine']}", file=sys.stderr)
    odd = [
        f"{name}.{key}"
        for name, found in manifest["layers"].items()
        for key, value in found.items()
        if wanted["layers"].get(name, {}).get(key) != value
    ]
    print(f"differ: {', '.join(odd)}" if odd else f"{len(manifest['layers'])} layers are equal")
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main())
