from tools.gpu_check.settings import Emit


def run(emit: Emit, device: str) -> None:
    emit("before", 1)
    raise ValueError("nothing\nfits")
