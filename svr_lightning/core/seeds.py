"""Seeds without state: a random draw depends on its purpose, never on earlier draws.

So a resumed run equals an uninterrupted one, and checkpoints need no generator state.
"""

import hashlib
import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SeedContext:
    """The place in a run that a random draw belongs to."""

    run_seed: int = 0
    step: int = 0
    """Optimizer steps taken so far."""
    attempt: int = 0
    """Generation attempt under dynamic resampling."""

    def seed(
        self, problem_id: str, *, purpose: str = "generate", sample: int = 0, turn: int = 0
    ) -> int:
        """A 63-bit seed for a draw about a problem; ``purpose`` tells draws at one place apart."""
        place = f"{self.run_seed}\0{self.step}\0{problem_id}"
        key = f"{place}\0{sample}\0{turn}\0{self.attempt}\0{purpose}"
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1

    def generator(self, problem_id: str, purpose: str, sample: int = 0) -> random.Random:
        """A random generator for one draw about a problem, independent of the tokens' draws."""
        return random.Random(self.seed(problem_id, purpose=purpose, sample=sample))  # noqa: S311


START = SeedContext()
"""The place of draws outside any run."""
