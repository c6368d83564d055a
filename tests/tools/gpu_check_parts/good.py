from tools.gpu_check.settings import Emit, Settings


def run(emit: Emit, settings: Settings) -> None:
    print("a library that talks", end="")
    emit("speed", 12.5, "tokens/s", note=f"on {settings.device}")
