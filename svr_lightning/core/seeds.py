"""Seeds without state: a random draw depends on its purpose, never on earlier draws.

So a resumed run equals an uninterrupted one, and checkpoints need no generator state.
"""

import hashlib
import random
from dataclasses import dataclass


def derive_seed(
    run_seed: int,
    *,
    step: int,
    problem_id: str,
    sample: int = 0,
    turn: int = 0,
    attempt: int = 0,
    purpose: str = "generate",
) -> int:
    """A 63-bit seed for one draw; ``purpose`` separates unrelated draws at the same place."""
    key = f"{run_seed}\0{step}\0{problem_id}\0{sample}\0{turn}\0{attempt}\0{purpose}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, kw_only=True)
class SeedContext:
    """The place in a run that a random draw belongs to."""

    run_seed: int = 0
    step: int = 0
    """Optimizer steps taken so far."""
    attempt: int = 0
    """Generation attempt under dynamic resampling."""

    def seed(self, problem_id: str, *, purpose: str, sample: int = 0, turn: int = 0) -> int:
        """:func:`derive_seed` of a draw about a problem at this place."""
        place = {"step": self.step, "attempt": self.attempt, "sample": sample, "turn": turn}
        return derive_seed(self.run_seed, problem_id=problem_id, purpose=purpose, **place)

    def generator(self, problem_id: str, purpose: str, sample: int = 0) -> random.Random:
        """A random generator for one draw about a problem, independent of the tokens' draws."""
        return random.Random(self.seed(problem_id, purpose=purpose, sample=sample))  # noqa: S311


START = SeedContext()
"""The place of draws outside any run."""
