import os
import subprocess
import time
from pathlib import Path

from tools.gpu_check.settings import FOLDER, Emit


def run(emit: Emit, device: str) -> None:
    (Path(os.environ[FOLDER]) / "file").touch()
    child = subprocess.Popen(["sleep", "600"])
    emit("child", child.pid)
    time.sleep(600)
