"""Which commands make the experiment, in order, and what each leaves."""

import gzip
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.commands import Command
from experiments.real.tasks import ShortAnswer, split
from svr_lightning.errors import require
from svr_lightning.files import to_json, write_file

HERE = Path(__file__).parent
CONFIG = HERE / "real.yaml"
RESULTS = HERE / "results"
TASK = f"{ShortAnswer.__module__}.{ShortAnswer.__qualname__}"

STEPS = ("--trainer.max_steps", "40")
WEIGHTS = "--model.recipe.init_args.weights."
ARMS = {
    "svr": (),
    "control": tuple(
        part for name in ("cal", "over", "detect", "ready") for part in (f"{WEIGHTS}{name}", "0.0")
    ),
    "exact": ("--model.recipe.init_args.exact_check", "1.0"),
    "warm": ("--config", str(HERE / "warm.yaml")),
}
ARMS |= {f"warm_{arm}": ARMS[arm] for arm in ("exact", "control")}
"""Options of each arm's training; ``warm`` is a warm start, from which ``warm_...`` begin."""
MODES = {
    "sampled": (),
    "fresh": ("--model.evaluation.fresh_turns", "true"),
    "checked": ("--model.evaluation.greedy_check", "true"),
}
"""How the held-out problems are recorded: five turns each; ``checked`` decodes checks greedily."""
RECORDED = dict.fromkeys(ARMS, ("checked",)) | dict.fromkeys(
    ("svr", "control"), ("sampled", "fresh")
)
"""What each arm is compared by; its start is recorded in the first of these modes."""


def commands(
    out: Path, seed: int, arms: list[str], options: Sequence[str] = ()
) -> Iterator[Command]:
    """The start of a seed, its recording, and each arm's training and recordings.

    Args:
        out: folder of the model, the data and all runs.
        seed: of demonstrations, order of problems and draws.
        arms: which of :data:`ARMS`.
        options: further ones of the package's commands.
    """
    root = out / f"seed{seed}"
    start = root / "start"

    def command(verb: str, folder: Path, policy: Path, *own: str) -> tuple[str, ...]:
        return (
            "svr_lightning",
            verb,
            "--config",
            str(CONFIG),
            "--seed_everything",
            str(seed),
            "--model.policy.path",
            str(policy),
            "--trainer.default_root_dir",
            str(folder),
            *own,
            *options,
        )

    def source(name: str, file: str) -> dict[str, str]:
        return {"name": name, "task": TASK, "path": str(out / "data" / f"{file}.jsonl")}

    def recording(name: str, mode: str, folder: Path, policy: Path) -> Command:
        # The negative control only where turns are sampled.
        names = ["test", "control"] if mode == "sampled" else ["test"]
        sources = to_json([source(n, n) for n in names])
        return Command(
            name=f"seed{seed}-{name}/{mode}",
            folder=folder,
            arguments=command("test", folder, policy, "--data.test", sources, *MODES[mode]),
            result=folder / "eval" / "test" / "samples.jsonl",
        )

    train = ("--data.train", to_json(source("real_train", "train")))
    yield Command(
        name=f"seed{seed}/start",
        folder=root,
        arguments=(
            "experiments.real.start",
            "--model",
            str(out / "model"),
            "--out",
            str(start),
            "--seed",
            str(seed),
        ),
        result=start / "config.json",
    )
    for mode in dict.fromkeys(RECORDED[arm][0] for arm in arms):
        yield recording("start", mode, root / "start-recorded" / mode, start)
    for arm in arms:
        folder = root / arm
        begin = root / "warm" / "policy" if arm.startswith("warm_") else start
        verb, *steps = ("warmstart",) if arm == "warm" else ("fit", *STEPS)
        yield Command(
            name=f"seed{seed}/{arm}/{verb}",
            folder=folder,
            arguments=command(verb, folder, begin, *steps, *train, *ARMS[arm]),
            result=folder / "policy" / "config.json",
        )
        for mode in RECORDED[arm]:
            yield recording(arm, mode, folder / mode, folder / "policy")


def prepare(out: Path) -> None:
    """Write the problems; the model has to be there.

    Raises:
        ConfigError: without it.
    """
    hint = f"python -m experiments.real.model --out {out}/model"
    require((out / "model" / "config.json").is_file(), f"there is no model: {hint}")
    for name in ("train", "test", "control"):
        write_file(out / "data" / f"{name}.jsonl", (to_json(row) + "\n" for row in split(name)))


def publish(command: Command) -> None:
    """Keep a recording, compressed."""
    target = RESULTS / f"{command.name.replace('/', '-')}.jsonl.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with command.result.open("rb") as source, gzip.GzipFile(target, "wb", mtime=0) as packed:
        shutil.copyfileobj(source, packed)
