"""Collects what the micro-batches of one optimizer step report."""

from collections.abc import Mapping

from torch import Tensor


class StepLog:
    """Means and maxima over the micro-batches since the last :meth:`take`."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._count = 0

    def add(self, means: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> None:
        """Note the values of one micro-batch."""
        self._count += 1
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.item()
        for name, value in maxima.items():
            self._maxima[name] = max(self._maxima.get(name, value.item()), value.item())

    def take(self) -> dict[str, float]:
        """The values of the step, and begin the next one."""
        values = {name: total / self._count for name, total in self._sums.items()} | self._maxima
        self._sums, self._maxima, self._count = {}, {}, 0
        return values
