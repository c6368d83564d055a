import subprocess
import time

from tools.gpu_check.settings import Emit, Settings


def run(emit: Emit, settings: Settings) -> None:
    child = subprocess.Popen(["sleep", "600"])
    emit("child", child.pid)
    time.sleep(600)
