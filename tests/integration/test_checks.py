"""Settings that only together can be wrong."""

import pytest

from svr_lightning.errors import ConfigError
from svr_lightning.training.distributed import check_precision


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("bf16-true", "keeps no fp32 masters"),
        ("16-true", "keeps no fp32 masters"),
        ("16-mixed", "leaves updates out until its loss scale fits"),
    ],
)
def test_what_loses_updates_is_refused(precision: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.precision={precision} {said}"):
        check_precision(precision, 1e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_weights_of_32_bits_and_more_train(precision: str) -> None:
    check_precision(precision, 1e-3)
