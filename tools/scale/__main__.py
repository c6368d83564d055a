"""Step time, idle places and stale tokens of a training on 1 to 64 GPUs, simulated.

    python -m tools.scale --config configs/math.yaml --config configs/hardware/4gpu_zero2.yaml
    python -m tools.scale --config ... --card "141 GB" --gpus 1,4,16 --out prediction.json
    python -m tools.scale --config ... --model.carry_over 1 --assume mfu=0.4 --assume median=400
    python -m tools.scale --config ... --run runs/math      # with what that run has logged

Takes what ``python -m svr_lightning fit`` takes. Needs neither a GPU nor the checkpoint. Computed
are the schedule of the engine's steps, weights, FLOPs and bytes; NVIDIA states peaks, bandwidths
and links; all else is assumed and printed as such. ``--run`` puts what a run of the same
configuration has measured in its place.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from textwrap import wrap

from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json
from tools.memory.plan import resolve
from tools.scale.cost import DEVICES, Assumptions
from tools.scale.predict import Prediction, Setting, measured_points

GPUS = "1,2,4,8,16,32,64"
HEAD = (
    f"{'GPUs':>4}{'step s':>8}{'rollout':>9}{'update':>8}{'sync':>6}{'wait':>6}{'idle':>6}"
    f"{'stale':>7}{'tokens/s':>10}{'engine steps':>14}"
)


def main(arguments: Sequence[str]) -> int:
    """Print the table; 2 for a fault of the configuration."""
    parser = argparse.ArgumentParser(
        prog="tools.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", default=GPUS, help=f"numbers of GPUs ({GPUS})")
    parser.add_argument("--card", choices=DEVICES, default="80 GB")
    parser.add_argument("--assume", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--run", type=Path, help="folder of a run to take measured values from")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps to simulate")
    parser.add_argument("--out", type=Path, help="JSON")
    options, rest = parser.parse_known_args(arguments)
    try:
        given = dict(_assumed(text) for text in options.assume)
        setting = Setting(
            resolved=resolve(rest),
            card=options.card,
            steps=options.steps,
            assumed=Assumptions(**given),
        )
        measured = measured_points(options.run, setting) if options.run else {}
        setting = replace(setting, assumed=Assumptions(**{**measured, **given}))
        found = [setting.on(int(gpus)) for gpus in options.gpus.split(",")]
    except ConfigError as error:
        print(f"tools.scale: error: {error}", file=sys.stderr)
        return 2
    print(report(setting, found, measured))
    if options.out:
        about = {"policy": setting.plan.policy, "card": setting.card, "measured": measured}
        about |= {"values": asdict(setting.assumed)}
        write_json(options.out, {**about, "predictions": [asdict(one) for one in found]})
    return 0


def report(setting: Setting, found: Sequence[Prediction], measured: Mapping[str, float]) -> str:
    """The table, what it rests on, and where the engine's cache is too small."""
    about = f"cards of {setting.card}, means of {setting.steps} optimizer steps"
    lines = [f"{setting.plan.policy}, {about}", "", HEAD]
    for one in found:
        shares = f"{one.wait:6.2f}{one.idle:6.2f}{one.stale:7.2f}"
        parts = f"{one.step:8.1f}{one.rollout:9.1f}{one.update:8.1f}{one.sync:6.2f}"
        rest = f"{one.tokens_per_second:10.0f}{one.engine_steps:14.0f}"
        lines.append(f"{one.gpus:4}{parts}{shares}{rest}")
    assumed = {k: v for k, v in asdict(setting.assumed).items() if k not in measured}
    lines += ["", "Measured: " + (_listed(measured) or "nothing; nothing of this ran on a GPU.")]
    lines.append("Assumed: " + _listed(assumed))
    for one in found:
        room = setting.costs(one.gpus).room
        if one.context > room:
            lines.append(
                f"{one.gpus} GPUs: the cache holds {room:,.0f} tokens of {one.context:,.0f}, so "
                "that vLLM interrupts completions: slower than predicted."
            )
    return "\n".join(part for line in lines for part in wrap(line, 80) or [""])


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in values.items())


def _assumed(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    known = sorted(one.name for one in fields(Assumptions))
    require(name in known, f"--assume {name}: unknown; known: {', '.join(known)}")
    try:
        return name, float(value)
    except ValueError as error:
        raise ConfigError(f"--assume {text}: give NAME=NUMBER") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
