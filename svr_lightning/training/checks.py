"""Settings that cannot work together, refused before any work."""

from svr_lightning.errors import require

FP16 = "leaves updates out until its loss scale fits, which is here an error"


def check_precision(precision: str, learning_rate: float) -> None:
    """Refuse what cannot train outside DeepSpeed, whose optimizer brings masters of its own.

    Raises:
        ConfigError: for weights without fp32 masters, and for fp16.
    """
    require(
        precision not in ("bf16-true", "16-true"),
        f"trainer.precision={precision} keeps no fp32 masters, so that a learning rate of "
        f"{learning_rate} would change nothing; use bf16-mixed or DeepSpeed",
    )
    require(precision != "16-mixed", f"trainer.precision={precision} {FP16}; use bf16-mixed")
