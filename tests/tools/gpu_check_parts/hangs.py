import subprocess
import time

from tools.gpu_check.settings import Emit


def run(emit: Emit, device: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    emit("child", child.pid)
    time.sleep(600)
