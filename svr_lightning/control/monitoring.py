"""What the server did: a line per request, and counts in the format of Prometheus."""

import json
import logging
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.control.controller import Result

REQUESTS = "svr_lightning.requests"
"""The logger that gets a line per request."""
_log = logging.getLogger(REQUESTS)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


def outcome(result: Result) -> str:
    """``accepted``, ``escalated`` for the second model's answer, ``unsure`` or ``gave_up``."""
    if result.accepted:
        return "accepted"
    if result.completion is None:
        return "gave_up"
    return "unsure" if result.returned is not None else "escalated"


class Monitor:
    """Counts of one server.

    Args:
        running: tells how many requests are in progress.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"svr_{name}", help_, labels, registry=self._registry)

        self._requests = counter("requests", "Requests by HTTP status.", "status")
        self._answers = counter(
            "answers", "Answers: accepted, escalated, unsure or gave_up.", "outcome"
        )
        self._turns = counter("turns", "Turns of the first model.")
        self._tokens = counter("tokens", "Tokens that both models read and wrote.", "kind")
        self._escalations = counter(
            "escalations", "Questions to the second model: answered or failed.", "outcome"
        )
        self._upstream_errors = counter(
            "upstream_errors",
            "Failed calls, each try, by model and HTTP status; 0 is no answer.",
            "model",
            "status",
        )
        self._seconds = Histogram(
            "svr_request_seconds",
            "Time of a request with all its turns.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        in_progress = Gauge(
            "svr_requests_in_progress", "Requests in progress.", registry=self._registry
        )
        in_progress.set_function(running)
        for label in ("accepted", "escalated", "unsure", "gave_up"):
            self._answers.labels(label)  # a share can be computed from the first answer on

    def page(self) -> bytes:
        """What ``/metrics`` shows."""
        return generate_latest(self._registry)

    def upstream_error(self, model: str, error: ServerError) -> None:
        """Count a failed call. A refusal of the model itself is an answer."""
        if error.refusal is None:
            self._upstream_errors.labels(model, error.status).inc()

    def request(self, status: int, seconds: float, end: Result | ServerError) -> None:
        """Count a request that has ended, with the turns before its error, and log it."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)
        line: dict[str, str | int] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "status": status,
            "seconds": f"{seconds:.3f}",
        }
        fault = str(end)
        if isinstance(end, Result):
            fault = end.escalation.error if end.escalation else ""
            line["outcome"] = outcome(end)
            self._answers.labels(outcome(end)).inc()
            if end.escalation:
                self._escalations.labels("failed" if fault else "answered").inc()
        line["turns"] = len(end.turns)
        self._turns.inc(len(end.turns))
        for kind in ("prompt", "completion"):
            of_turns = sum(getattr(turn.completion, f"{kind}_tokens") for turn in end.turns)
            line[f"{kind}_tokens"] = spent = getattr(end, f"{kind}_tokens", of_turns)
            self._tokens.labels(kind).inc(spent)
        if fault:
            line["error"] = json.dumps(fault)
        _log.info(" ".join(f"{name}={value}" for name, value in line.items()))
