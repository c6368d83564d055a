"""``python -m tools.gpu_check``: measurements that need a GPU, in under 8 minutes."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from svr_lightning.files import write_json
from tools.bench.machine import hardware, versions
from tools.gpu_check.runner import Part, run_parts
from tools.gpu_check.settings import EngineName, Settings

SECONDS = 470.0
"""For all parts together: just under 8 minutes."""
NO_CUDA = 2
PARTS = (
    Part(name="update", module="tools.gpu_check.update", share=100),
    Part(name="memory", module="tools.bench.update", share=30),
    Part(name="engine", module="tools.gpu_check.parity", share=120),
    Part(name="rollout", module="tools.gpu_check.rollouts", share=95),
    Part(name="deepspeed", module="tools.gpu_check.training_run", share=125),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the check.

    Returns:
        0 where every part ran or said why it cannot run here, 1 where one failed, 2 where there is
        no GPU.
    """
    options = _options(arguments)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        print(
            "tools.gpu_check: error: torch finds no CUDA device here; --small tries every "
            "part out on a CPU, with tiny models",
            file=sys.stderr,
        )
        return NO_CUDA
    engine: EngineName = options.engine or ("vllm" if device == "cuda" else "transformers")
    settings = Settings(device=device, engine=engine, small=options.small)
    report: dict[str, Any] = {
        "small": options.small,
        "engine": engine,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "hardware": hardware(device),
        "dims": _dims(options.small),
        "parts": {},
    }
    out = options.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if part.name in options.parts]
    print(f"gpu_check: {', '.join(f'{k} {v}' for k, v in report['versions'].items() if v)}")
    print(f"gpu_check: {', '.join(f'{k} {v}' for k, v in report['hardware'].items() if v)}")
    print(f"gpu_check: {options.seconds:.0f} s in all for {', '.join(p.name for p in chosen)}")

    def keep(parts: dict[str, Any]) -> None:
        report["parts"] = parts
        write_json(out, report)

    keep({})
    with out.with_suffix(".log").open("w", encoding="utf-8") as log:
        parts = run_parts(chosen, settings, seconds=options.seconds, log=log, say=_say, keep=keep)
    print(f"gpu_check: figures in {out}, all other output in {log.name}")
    return int(any("error" in part for part in parts.values()))


def _say(line: str) -> None:
    print(line, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, allow_abbrev=False
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=names,
        help=f"some of {','.join(names)}",
    )
    parser.add_argument("--small", action="store_true", help="tiny models; runs on a CPU too")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: by device")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for all parts together, default 470"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"--parts: there is no {', '.join(unknown)}; known: {', '.join(names)}")
    return options


def _dims(small: bool) -> dict[str, Any]:
    from tools.gpu_check.models import shapes

    return {name: dict(shape.dims) for name, shape in shapes(small).items()}


if __name__ == "__main__":
    sys.exit(main())
