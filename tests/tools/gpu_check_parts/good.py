from tools.gpu_check.settings import Emit


def run(emit: Emit, device: str) -> None:
    print("a library that talks", end="")
    emit("speed", 12.5, "tokens/s", note=f"on {device}")
