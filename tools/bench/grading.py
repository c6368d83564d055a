"""Completions graded per second, and what hostile answers cost.

    python -m tools.bench grading --data DATA --out tools/bench/results/grading.json

DATA is a folder that holds each data set as NAME.jsonl.

Half of the completions are right. Countdown and GSM8K are graded by the paper's rule, MATH by both
graders. Rates are by processor time, of this process and for the symbolic grader of the worker too,
and by wall time.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import SymbolicGrader
from svr_lightning.tasks.latex import equivalent
from svr_lightning.tasks.symbolic import SymbolicWorker
from tools.bench.hostile_answers import hostile_answers

CHECK = "\n<self_check>\nVERDICT: CORRECT\nCONFIDENCE: 0.93\n</self_check>"
Case = tuple[str, Problem]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which completions, and how many."""
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark problems")
    parser.add_argument("--count", type=int, default=4000, help="completions per measurement")
    parser.add_argument("--hostile", type=int, default=10_000, help="hostile answers")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Each task's rate, then the hostile answers."""
    cases = {
        "countdown": countdown_cases(options.data / "countdown.jsonl", options.count),
        "gsm8k": text_cases("gsm8k", [options.data / "gsm8k_test.jsonl"], options.count),
        "math": text_cases(
            "math", [options.data / f"{n}.jsonl" for n in ("math500", "math_train")], options.count
        ),
    }
    figures: dict[str, Any] = {"python": platform.python_version(), "machine": platform.processor()}
    for name, of_task in cases.items():
        figures[name] = paper_rate(of_task)
    figures["math, symbolic"] = symbolic_rate(cases["math"])
    figures["hostile"] = hostile(options.hostile)
    print(json.dumps(figures, indent=1))
    return figures


def rows(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def completion(thought: str, answer: str) -> str:
    """A completion in the requested form, of 300 to 2,000 characters."""
    return f"<think>\n{thought[:1700]:<200}\n</think>\n<answer>{answer}</answer>{CHECK}"


def countdown_cases(path: Path, count: int) -> list[Case]:
    """Real problems, answered by their own equation or by that of a neighbour."""
    task, found = get_task("countdown"), rows(path)[: count + 1]
    cases = []
    for index, row in enumerate(found[:count]):
        mine = found[index + (index % 2)]["solution"]
        a, b, *_ = row["nums"]
        tries = "\n".join(
            f"{a} {sign} {b} = ?, then {k}: no." for k in range(12) for sign in "+-*/"
        )
        cases.append((completion(tries, mine), task.from_row(row)))
    return cases


def text_cases(name: str, paths: Sequence[Path], count: int) -> list[Case]:
    """Real problems with their solution as the thought and their gold, or a neighbour's, boxed."""
    task = get_task(name)
    found = [row for path in paths for row in rows(path) if row["answer"]][: count + 1]
    problems = [task.from_row(row) for row in found]
    return [
        (
            completion(found[i]["solution"], rf"\boxed{{{problems[i + i % 2].reference}}}"),
            problems[i],
        )
        for i in range(len(found) - 1)
    ]


def timed(
    work: Callable[[], int], worker_seconds: Callable[[], float] = lambda: 0.0
) -> dict[str, Any]:
    """Items per second of processor time and of wall time; ``work`` returns how many it did."""
    wall, cpu, other = time.perf_counter(), time.process_time(), worker_seconds()
    count = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    cpu += worker_seconds() - other
    return {
        "count": count,
        "per_cpu_second": round(count / cpu),
        "per_wall_second": round(count / wall),
    }


def paper_rate(cases: Sequence[Case]) -> dict[str, Any]:
    """The paper's grader, the fastest of three runs by processor time."""
    task = get_task(cases[0][1].task)

    def work() -> int:
        for text, problem in cases:
            task.grade(text, problem)
        return len(cases)

    return max((timed(work) for _ in range(3)), key=lambda run: run["per_cpu_second"])


def symbolic_rate(cases: Sequence[Case]) -> dict[str, Any]:
    """The symbolic grader with a fresh worker that is ready."""
    worker = SymbolicWorker()
    worker.equal("1", "x")
    grader, task = SymbolicGrader(compare=worker.equal), get_task("math")
    slowest = 0.0

    def work() -> int:
        nonlocal slowest
        for text, problem in cases:
            started = time.perf_counter()
            grader.grade(task, text, problem)
            slowest = max(slowest, time.perf_counter() - started)
        return len(cases)

    rate = timed(work, lambda: cpu_seconds(worker.pid))
    memory = peak_mib(worker.pid)
    worker.close()
    return {**rate, "slowest_seconds": round(slowest, 4), "worker_peak_mib": memory}


def hostile(count: int) -> dict[str, Any]:
    """Hostile answers, each against a term, a number or itself."""
    worker = SymbolicWorker()
    worker.equal("1", "x")
    idle, peak, slowest = peak_mib(worker.pid), 0.0, (0.0, "", "")
    faults: dict[str, int] = {}
    accepted: list[str] = []
    cpu, longest = time.process_time(), 0.0
    started_all = time.perf_counter()
    for index, (kind, answer) in enumerate(hostile_answers(count)):
        reference = (r"\frac{x+1}{2}", r"2\sqrt{3}", answer)[index % 3]
        started, pid = time.perf_counter(), worker.pid
        used = time.process_time() + cpu_seconds(pid)
        equivalent(answer, reference)
        try:
            if worker.equal(answer, reference) and reference != answer:
                accepted.append(answer[:80])
        except GradingError as error:
            faults[str(error)] = faults.get(str(error), 0) + 1
        longest = max(longest, time.perf_counter() - started)
        if worker.pid == pid:
            used = time.process_time() + cpu_seconds(pid) - used
            slowest = max(slowest, (used, kind, answer[:80]))
        peak = max(peak, peak_mib(worker.pid))
    wall = time.perf_counter() - started_all
    worker.close()
    return {
        "count": count,
        "slowest_cpu_seconds": round(slowest[0], 3),
        "slowest_wall_seconds": round(longest, 3),
        "slowest_kind": slowest[1],
        "slowest_answer": slowest[2],
        "mean_ms": round(wall / count * 1000, 3),
        "own_cpu_seconds": round(time.process_time() - cpu, 2),
        "faults": faults,
        "accepted_against_another_reference": accepted,
        "worker_peak_mib": peak,
        "worker_idle_mib": idle,
    }


def cpu_seconds(pid: int | None) -> float:
    """Processor time of a worker and its children, ended ones included; 0 if not known."""
    seconds = 0.0
    for process in (pid, *_children(pid)):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / 100
    return seconds


def peak_mib(pid: int | None) -> float:
    """The most memory that a worker's present child has had, in MiB; 0 if not known."""
    try:
        (child,) = _children(pid)
        status = Path(f"/proc/{child}/status").read_text()
    except (OSError, ValueError):
        return 0.0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return round(int(sizes[0]) / 1024, 1) if sizes else 0.0


def _children(pid: int | None) -> list[int]:
    try:
        return [int(i) for i in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
