"""Why torch sees no GPU on a machine that has one."""

import torch

from svr_lightning.cli import messages
from svr_lightning.cli.messages import explain


def test_a_driver_that_is_too_old_for_torchs_cuda_is_named(tmp_path, monkeypatch):
    driver = tmp_path / "version"
    monkeypatch.setattr(messages, "DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert messages.driver_fault() is None  # no GPU here
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 2024\n")
    assert messages.driver_fault() == (
        "torch is built for CUDA 13.0, which needs an NVIDIA driver >= 580; "
        "the driver here is 550.54.15"
    )
    line = explain(RuntimeError("No supported gpu backend found!"))
    assert line is not None
    assert line.startswith("torch is built for CUDA 13.0")
    assert "--config hardware/cpu_smoke" in line
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert messages.driver_fault() is None
