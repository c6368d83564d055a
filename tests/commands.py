"""Commands as a user types them: what they leave in their folders, and how they refuse."""

import csv
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from svr_lightning.__main__ import main
from svr_lightning.cli.main import READING

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
TINY = ("--config", str(CONFIGS / "countdown_tiny.yaml"))
SMALL = (*TINY, "--config", str(ROOT / "tests" / "faults" / "small_run.yaml"))
"""A training of seconds."""
SHIPPED = ROOT / "svr_lightning" / "tiny" / "countdown_policy"


def embedded(limit: int, split: str = "test", name: str = "held_out") -> str:
    """A list of one data set: the first problems of the embedded Countdown."""
    where = f"path: 'embedded:countdown-tiny', split: {split}, limit: {limit}"
    return f"[{{name: {name}, task: countdown, {where}}}]"


def layer(name: str) -> dict[str, Any]:
    """A configuration that ships, as it is written."""
    return dict(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")))


def dotted(settings: Any, name: str = "") -> dict[str, Any]:
    """The values of nested settings, by their dotted names."""
    if not isinstance(settings, dict):
        return {name: settings}
    inner = (dotted(value, f"{name}.{key}".strip(".")) for key, value in settings.items())
    return {key: value for one in inner for key, value in one.items()}


def flags(settings: Mapping[str, object]) -> list[str]:
    """Settings as words of a command: ``{"trainer.max_steps": 2}`` is ``--trainer.max_steps 2``."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def ran(*words: object, cwd: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A program that has come to its end, on one thread and in 80 columns."""
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def refused(capsys, *words: object) -> str:
    """The line in which a command says what is wrong with it; one that reads files says no more."""
    assert main([*map(str, words)]) == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert line.startswith("svr: error: ")
    assert words[0] not in READING or before == []
    return line.removeprefix("svr: error: ")


def resolved(capsys, *words: object) -> dict[str, Any]:
    """What a command prints with ``--print_config``, read back."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--print_config"])
    assert end.value.code in (0, None), capsys.readouterr().err
    return dict(yaml.safe_load(capsys.readouterr().out))


def screen(capsys) -> str:
    """What was printed, without line breaks."""
    return " ".join(capsys.readouterr().out.split())


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """A file with an object in each line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one in each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def logged(folder: Path) -> dict[str, dict[int, float]]:
    """What a run wrote to ``metrics.csv``: by key and step."""
    found = {}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(row["key"], {})[int(row["step"])] = float(row["value"] or "nan")
    return found


def sampled(folder: Path, step: int, key: str = "text") -> dict[tuple[str, int], list[Any]]:
    """What each turn of a step's trajectories has under ``key``, by problem and sample."""
    return {
        (line["id"], line["sample"]): [turn[key] for turn in line["turns"]]
        for line in jsonl(folder / "rollouts.jsonl")
        if line["step"] == step
    }
