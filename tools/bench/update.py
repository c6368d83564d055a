"""Memory and time of the update's log-probabilities, block by block against all scores at once.

    python -m tools.bench update --out tools/bench/results/update.json

"Plain" is ``token_logprobs(hidden @ weight.T)``, "blocks" is ``linear_logprobs``; both forward and
backward, gradients of hidden states and weight included. On a GPU everything is measured as it is.
On a CPU the plain path at full size needs more memory than machines like CI's have, so that:

- live bytes of both paths at full size are counted exactly, tensor by tensor, on tensors without
  data; temporaries inside one operation do not count, which favours the plain path;
- the count is held against the resident memory that fresh processes really take, at sizes that fit,
  the blocks at all positions of the full size (with fewer features, or it takes a quarter of an
  hour; ``--features-measured 2048`` does it all the same).

The backward pass takes over what the forward pass computed as far as a GiB holds it, and computes
the rest anew: four matrix products there instead of three. Both ends are timed, all of it kept, as
at the sizes timed here, and none, which is where far larger ones tend to.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from svr_lightning.core import linear_logprobs as blockwise
from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.core.losses import token_logprobs

VOCABULARY = 248_320
TOKENS = 8 * 2048
FEATURES = 2048
TEMPERATURE = 0.9
GIB = 2**30


def plain(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Scores of the whole vocabulary, then their log-softmax."""
    scores = torch.nn.functional.linear(hidden, weight).unsqueeze(0)
    return token_logprobs(scores, token_ids.unsqueeze(0), TEMPERATURE)[0]


def blocks(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """The package's own."""
    return linear_logprobs(hidden, weight, None, token_ids, TEMPERATURE)


PATHS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"plain": plain, "blocks": blocks}


def inputs(tokens: int, vocabulary: int, features: int, device: str = "cpu") -> tuple[Tensor, ...]:
    """Hidden states, weight, token ids."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, features, device=device, requires_grad=True)
    weight = torch.randn(vocabulary, features, device=device).mul_(features**-0.5).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (tokens,), device=device)


def update(path: str, hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Forward and backward, with another incoming gradient for every token."""
    hidden.grad = weight.grad = None
    values = PATHS[path](hidden, weight, token_ids)
    values.backward(torch.linspace(-1.0, 1.0, len(values), device=values.device))
    return values.detach()


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, then note its storages."""
        given = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self._note(storage)
        return result

    def _note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()

        def gone(_: Any) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def counted(path: str, tokens: int, vocabulary: int, features: int) -> int:
    """Peak live bytes beyond the inputs, on tensors without data."""
    with FakeTensorMode():
        given = inputs(tokens, vocabulary, features)
        with LiveBytes() as live:
            update(path, *given)
    return live.peak


def resident(path: str, tokens: int, vocabulary: int, features: int) -> int:
    """Peak resident bytes beyond the inputs, of a fresh process."""
    command = [sys.executable, __file__, "--child", path, *map(str, (tokens, vocabulary, features))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def child(path: str, tokens: int, vocabulary: int, features: int) -> None:
    """Print this process's own peak beyond its inputs."""
    update(path, *inputs(8, 64, features))  # libraries allocate on first use
    given = inputs(tokens, vocabulary, features)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status("VmRSS")
    update(path, *given)
    print(_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def on_gpu(path: str, tokens: int, vocabulary: int, features: int) -> int:
    """Peak allocated bytes beyond the inputs."""
    given = inputs(tokens, vocabulary, features, "cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    update(path, *given)
    return torch.cuda.max_memory_allocated() - before


def memory(features_measured: int) -> dict[str, Any]:
    """Peaks of both paths at full size, and how they were found."""
    if torch.cuda.is_available():
        peaks = {path: on_gpu(path, TOKENS, VOCABULARY, FEATURES) for path in PATHS}
        rows = [_row("allocated", path, TOKENS, FEATURES, peak) for path, peak in peaks.items()]
    else:
        peaks = {path: counted(path, TOKENS, VOCABULARY, FEATURES) for path in PATHS}
        rows = [_row("counted", path, TOKENS, FEATURES, peak) for path, peak in peaks.items()]
        fits = [("plain", 512), ("plain", 1024), ("plain", 2048), ("blocks", TOKENS)]
        for path, tokens in fits:
            size = (path, tokens, VOCABULARY, features_measured if path == "blocks" else 128)
            rows.append(_row("counted", path, tokens, size[3], counted(*size)))
            rows.append(_row("resident", path, tokens, size[3], resident(*size)))
    return {"rows": rows, "share": peaks["blocks"] / peaks["plain"]}


def _row(how: str, path: str, tokens: int, features: int, peak: int) -> dict[str, Any]:
    print(f"  {how:9} {path:7} {tokens:6} tokens {features:5} features {peak / GIB:8.3f} GiB")
    return {"how": how, "path": path, "tokens": tokens, "features": features, "bytes": peak}


def agreement(device: str) -> dict[str, float]:
    """Largest differences of values, and of gradients relative to the largest gradient."""
    given = inputs(256, VOCABULARY, 256, device)
    found = {}
    for path in PATHS:
        values = update(path, *given)
        found[path] = (values, given[0].grad, given[1].grad)
    gaps = [(a - b).abs().max() for a, b in zip(*found.values(), strict=True)]
    largest = [1.0, *(g.abs().max() for g in found["plain"][1:])]
    names = ("values", "grad_hidden", "grad_weight")
    return {n: float(g / top) for n, g, top in zip(names, gaps, largest, strict=True)}


def timing(
    device: str, tokens: int, vocabulary: int, features: int, repeats: int
) -> dict[str, Any]:
    """Median seconds of both paths, taken in turns, after one that does not count."""
    given = inputs(tokens, vocabulary, features, device)
    wall: dict[str, list[float]] = {path: [] for path in PATHS}
    cpu: dict[str, list[float]] = {path: [] for path in PATHS}
    for _ in range(repeats + 1):
        for path in PATHS:
            began, began_cpu = time.perf_counter(), time.process_time()
            update(path, *given)
            if device == "cuda":
                torch.cuda.synchronize()
            wall[path].append(time.perf_counter() - began)
            cpu[path].append(time.process_time() - began_cpu)
    result: dict[str, Any] = {"tokens": tokens, "vocabulary": vocabulary, "features": features}
    for name, seconds in (("wall", wall), ("cpu", cpu)):
        medians = {path: statistics.median(values[1:]) for path, values in seconds.items()}
        result[name] = medians | {"ratio": medians["blocks"] / medians["plain"]}
    return result


def main() -> int:
    """Print what was found; exit 1 if memory, values or time miss their limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--features-measured", type=int, default=128)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], *map(int, options.child[1:]))
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"peak memory beyond the inputs, fp32, vocabulary {VOCABULARY}:")
    found: dict[str, Any] = {"memory": memory(options.features_measured)}
    share = found["memory"]["share"]
    print(f"  blocks / plain at {TOKENS} tokens, {FEATURES} features: {share:.4f} (limit 0.125)")
    found["agreement"] = agreement(device)
    print(f"differences (limit 1e-5): {found['agreement']}")
    # A GPU takes the real size, as far as the plain path fits; a CPU one of the same proportions.
    sizes = [(4096, VOCABULARY)] if device == "cuda" else [(1024, 32_768)]
    found["timing"] = []
    for kept in (blockwise.KEPT_BYTES, 0):
        blockwise.KEPT_BYTES = kept
        found["timing"] += [
            {"kept": kept} | timing(device, tokens, vocabulary, features, options.repeats)
            for tokens, vocabulary in sizes
            for features in (1024, FEATURES)
        ]
    clock = "wall" if device == "cuda" else "cpu"  # cores are shared: what others take is not ours
    for row in found["timing"]:
        print(
            f"{row['tokens']} tokens, vocabulary {row['vocabulary']}, {row['features']} features, "
            f"at most {row['kept'] / GIB:g} GiB kept:"
        )
        for name in ("wall", "cpu"):
            values = row[name]
            print(
                f"  {name:4} plain {values['plain']:.3f} s, blocks {values['blocks']:.3f} s, "
                f"ratio {values['ratio']:.3f}"
            )
    found["machine"] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    fine = share <= 1 / 8 and max(found["agreement"].values()) <= 1e-5
    in_time = all(row[clock]["ratio"] <= 1.15 for row in found["timing"] if row["kept"])
    return 0 if fine and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
