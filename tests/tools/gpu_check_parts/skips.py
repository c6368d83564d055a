from tools.gpu_check.settings import Emit, SkippedError


def run(emit: Emit, device: str) -> None:
    raise SkippedError("the package is not installed")
