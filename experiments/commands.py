"""Commands that can be interrupted: start the same ones again, and what is done is skipped."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from svr_lightning.errors import require


@dataclass(frozen=True, kw_only=True)
class Command:
    """A module's command line, and the file that it leaves when it has ended."""

    name: str
    folder: Path
    """Of its checkpoints and its log."""
    arguments: tuple[str, ...]
    """After ``python -m``."""
    result: Path

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        return self.result.is_file()

    def run(self) -> None:
        """Run it with one thread, a training from its last checkpoint if there is one.

        Raises:
            ConfigError: if it fails; its log is named.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self.name.rpartition('/')[2]}.log"
        arguments = [sys.executable, "-m", *self.arguments]
        if "fit" in arguments and (self.folder / "checkpoints" / "last.ckpt").is_file():
            arguments += ["--ckpt_path", "last"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as stream:
            code = subprocess.call(arguments, env=environment, stdout=stream, stderr=stream)
        require(not code and self.done, f"{self.name} ended with {code}, see {log}")
