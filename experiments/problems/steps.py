"""The operations on positive integers that solve the problems of both embedded tasks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on two positive integers, with a positive integer as its value: ``8/2=4``."""

    left: int
    operator: str
    right: int
    value: int
    label: str = ""
    """What a word problem calls the value."""

    @property
    def task(self) -> str:
        """The operation without its value: ``8/2``."""
        return f"{self.left}{self.operator}{self.right}"

    @property
    def text(self) -> str:
        """The step as a trace shows it: ``8/2=4``, or ``left 12-5=7``."""
        return f"{self.label} {self.task}={self.value}".lstrip()


def operate(left: int, operator: str, right: int, largest: int, label: str = "") -> Step:
    """The operation with its value.

    Raises:
        ArithmeticError: unless the value is whole, positive and at most ``largest``.
    """
    if operator == "/":
        value = 0 if left % right else left // right
    else:
        value = {"+": left + right, "-": left - right, "*": left * right}[operator]
    if not 0 < value <= largest:
        raise ArithmeticError(f"{left}{operator}{right} has no value from 1 to {largest}")
    return Step(left, operator, right, value, label)
