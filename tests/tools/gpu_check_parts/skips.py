from tools.gpu_check.settings import Emit, Settings, SkippedError


def run(emit: Emit, settings: Settings) -> None:
    raise SkippedError("the package is not installed")
