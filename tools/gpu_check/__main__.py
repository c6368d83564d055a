"""``python -m tools.gpu_check``: whether training works on a machine with GPUs, and how fast."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from svr_lightning.files import write_json
from tools.bench.machine import this_machine
from tools.gpu_check.releases import untested
from tools.gpu_check.runner import Part, run_parts

SECONDS = 570.0
"""For all parts together: just under 10 minutes."""
NO_CUDA = 2
# What matters most comes first, what compiles the engine last.
PARTS = (
    Part(name="parity", call="tools.gpu_check.parity.run", share=110),
    Part(name="memory", call="tools.bench.update.run", share=20),
    Part(name="update", call="tools.gpu_check.update.run", share=90),
    Part(name="resume", call="tools.gpu_check.fits.resume", share=110),
    Part(name="fit", call="tools.gpu_check.fits.run", share=160),
    Part(name="rollout", call="tools.gpu_check.rollouts.run", share=120),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the check.

    Returns:
        0 where every part ran or said why it cannot run here, 1 where one failed, 2 where there is
        no GPU.
    """
    options = _options(arguments)
    import torch

    if not (options.cpu or torch.cuda.is_available()):
        print(
            "tools.gpu_check: error: torch finds no CUDA device here; --cpu tries every "
            "part out on a CPU, with tiny models",
            file=sys.stderr,
        )
        return NO_CUDA
    device = "cpu" if options.cpu else "cuda"
    out = options.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    earlier = json.loads(out.read_text(encoding="utf-8"))["parts"] if out.exists() else {}
    report: dict[str, Any] = {
        "device": device,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **this_machine(device),
        "parts": earlier,
    }
    report["untested"] = untested(report["versions"])
    chosen = [part for part in PARTS if part.name in options.parts]
    for about in ("versions", "hardware"):
        _say(f"gpu_check: {', '.join(f'{k} {v}' for k, v in report[about].items() if v)}")
    for line in report["untested"]:
        _say(f"gpu_check: not tested: {line}")
    _say(f"gpu_check: {options.seconds:.0f} s in all for {', '.join(p.name for p in chosen)}")

    def keep(parts: dict[str, Any]) -> None:
        write_json(out, report | {"parts": earlier | parts})

    with out.with_suffix(".log").open("a", encoding="utf-8") as log:
        parts = run_parts(chosen, device, seconds=options.seconds, log=log, say=_say, keep=keep)
    _say(f"gpu_check: figures in {out}, all other output in {log.name}")
    return int(any("error" in part for part in parts.values()))


def _say(line: str) -> None:
    print(line, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, allow_abbrev=False
    )
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gpu_check.json"),
        help="takes each figure as it is found; parts that it holds and that do not run stay",
    )
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=names,
        help=f"some of {','.join(names)}",
    )
    parser.add_argument("--cpu", action="store_true", help="every part in small, on a CPU")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"for all parts together, {SECONDS:.0f}"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"--parts: there is no {', '.join(unknown)}; known: {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
