from tools.gpu_check.settings import Emit, Settings


def run(emit: Emit, settings: Settings) -> None:
    emit("before", 1)
    raise ValueError("nothing\nfits")
