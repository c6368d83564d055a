"""What only the trainer, the data and the recipe together can tell to be wrong, before any work."""

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


def check_batch(*, problems: int, samples_per_problem: int, updates: int, accumulate: int) -> None:
    """Every optimizer step needs equally many samples, and one for each micro-batch.

    Args:
        problems: of a rollout, on each process.
        samples_per_problem: that the recipe makes.
        updates: optimizer steps per rollout.
        accumulate: micro-batches per optimizer step.

    Raises:
        ConfigError: where the samples do not divide into them.
    """
    samples = problems * samples_per_problem
    made = (
        f"{samples} samples per rollout ({problems} problems per process x "
        f"{samples_per_problem} of the recipe)"
    )
    require(
        samples % updates == 0,
        f"{made} do not divide into model.updates_per_rollout={updates} "
        "optimizer steps; change one of them",
    )
    require(
        samples // updates >= accumulate,
        f"{made} over model.updates_per_rollout={updates} optimizer steps are "
        f"fewer than trainer.accumulate_grad_batches={accumulate}; lower that one",
    )
