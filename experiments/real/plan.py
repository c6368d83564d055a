"""Which commands make the experiment, in order, and what each leaves."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.real.tasks import ShortAnswer, split
from svr_lightning.errors import ConfigError
from svr_lightning.files import to_json, write_file

HERE = Path(__file__).parent
CONFIG = HERE / "real.yaml"
RESULTS = HERE / "results"
TASK = f"{ShortAnswer.__module__}.{ShortAnswer.__qualname__}"

WEIGHTS = "--model.recipe.init_args.weights."
ARMS = {
    "svr": (),
    "control": tuple(
        part for name in ("cal", "over", "detect", "ready") for part in (f"{WEIGHTS}{name}", "0.0")
    ),
    "supervised": (
        *("--model.recipe", "experiments.real.recipes.SupervisedSVR"),
        *("--model.recipe.init_args.tokenizer", "{start}"),
    ),
}
"""Options of each arm's training; ``{start}`` is the folder of the seed's start."""
MODES = {
    "sampled": ("--model.evaluation.temperature", "0.9"),
    "greedy": (),
    "fresh": ("--model.evaluation.temperature", "0.9", "--model.evaluation.fresh_turns", "true"),
}
"""How the held-out problems are recorded: five turns each."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A command that can be interrupted, and the file that it leaves when it has ended."""

    name: str
    folder: Path
    arguments: tuple[str, ...]
    result: Path

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        return self.result.exists()

    def run(self) -> None:
        """Run it, from its last checkpoint if there is one; its output goes to a log.

        Raises:
            ConfigError: if it fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self.name.rpartition('/')[2]}.log"
        arguments = [*self.arguments]
        if "fit" in arguments and (self.folder / "checkpoints" / "last.ckpt").is_file():
            arguments += ["--ckpt_path", "last"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as stream:
            code = subprocess.run(
                [sys.executable, "-m", *arguments], env=environment, stdout=stream, stderr=stream
            ).returncode
        if code or not self.done:
            raise ConfigError(f"{self.name} ended with {code}, see {log}")


def pieces(
    out: Path, seed: int, arms: list[str], steps: int, options: tuple[str, ...] = ()
) -> Iterator[Piece]:
    """The start of a seed, its recording, and each arm's training and recordings.

    Args:
        out: folder of the model, the data and all runs.
        seed: of demonstrations, order of problems and draws.
        arms: which of :data:`ARMS`.
        steps: optimizer steps of a training.
        options: further ones of the package's commands.
    """
    root = out / f"seed{seed}"
    start = root / "start"
    recorded = partial(recording, out, seed=seed, options=options)
    yield Piece(
        name=f"seed{seed}/start",
        folder=root,
        arguments=(
            *("experiments.real.start", "--model", str(out / "model")),
            *("--out", str(start), "--seed", str(seed)),
        ),
        result=start / "config.json",
    )
    yield recorded(root / "start-recorded", f"seed{seed}-start", start, mode="sampled")
    for arm in arms:
        folder = root / arm
        yield training(out, folder, start, seed, arm, steps, options)
        for mode in MODES:
            yield recorded(folder / mode, f"seed{seed}-{arm}", folder / "policy", mode=mode)


def command(verb: str, folder: Path, policy: Path, seed: int) -> tuple[str, ...]:
    """What all commands of the package have in common."""
    return (
        *("svr_lightning", verb, "--config", str(CONFIG), "--seed_everything", str(seed)),
        *("--model.policy.path", str(policy), "--trainer.default_root_dir", str(folder)),
    )


def training(
    out: Path, folder: Path, start: Path, seed: int, arm: str, steps: int, options: tuple[str, ...]
) -> Piece:
    """One arm's training."""
    source = {"name": "real_train", "task": TASK, "path": str(out / "data" / "train.jsonl")}
    return Piece(
        name=f"{folder.parent.name}/{folder.name}/fit",
        folder=folder,
        arguments=(
            *command("fit", folder, start, seed),
            *("--trainer.max_steps", str(steps), "--data.train", to_json(source)),
            *(option.format(start=start) for option in ARMS[arm]),
            *options,
        ),
        result=folder / "policy" / "config.json",
    )


def recording(
    out: Path,
    folder: Path,
    name: str,
    policy: Path,
    *,
    seed: int,
    mode: str,
    options: tuple[str, ...],
) -> Piece:
    """A policy on the held-out problems; on the negative control only where it is sampled."""
    names = ["test", "control"] if mode == "sampled" else ["test"]
    sources = [{"name": n, "task": TASK, "path": str(out / "data" / f"{n}.jsonl")} for n in names]
    return Piece(
        name=f"{name}/{mode}",
        folder=folder,
        arguments=(
            *command("test", folder, policy, seed),
            *("--data.test", to_json(sources), *MODES[mode], *options),
        ),
        result=folder / "eval" / "test" / "samples.jsonl",
    )


def prepare(out: Path) -> None:
    """Write the problems; the model has to be there.

    Raises:
        ConfigError: without it.
    """
    if not (out / "model" / "config.json").is_file():
        raise ConfigError(f"there is no model: python -m experiments.real.model --out {out}/model")
    for name in ("train", "test", "control"):
        write_file(out / "data" / f"{name}.jsonl", (to_json(row) + "\n" for row in split(name)))


def publish(piece: Piece) -> None:
    """Keep a recording, compressed."""
    target = RESULTS / f"{piece.name.replace('/', '-')}.jsonl.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with piece.result.open("rb") as source, gzip.GzipFile(target, "wb", mtime=0) as packed:
        shutil.copyfileobj(source, packed)
