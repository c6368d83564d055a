"""What a run logs of its speed follows from what it did, and joins what its processes noted."""

import pytest
import torch

from svr_lightning.training.logs import CSVLog, combined, transferred
from tests.commands import logged
from tests.small_fit import data, module, trainer, turns_of


def test_a_training_logs_its_speed(tmp_path):
    model = module(micro_batch_size=8)
    trainer(tmp_path, max_steps=2, logger=[CSVLog(tmp_path)]).fit(model, data())
    values = {key: found[2] for key, found in logged(tmp_path).items() if 2 in found}
    samples = [sample for group in model.rollout.groups for sample in group.samples]
    sampled = sum(len(turn.sampled.token_ids) for turn in turns_of(model))
    learned = sum(len(one.prompt_ids) + len(one.completion_ids) for one in samples)
    assert values["speed/rollout"] * values["time/rollout"] == pytest.approx(sampled)
    assert values["speed/update"] * values["time/update"] == pytest.approx(learned)
    assert 0.1 < logged(tmp_path)["memory/peak"][1] <= values["memory/peak"] < 64


def test_scalars_of_micro_batches_arrive_as_they_were_whichever_they_have():
    first = {"train/loss": torch.tensor(0.1), "train/ratio_max": torch.tensor(1.5)}
    second = {"train/loss": torch.tensor(-3.0, requires_grad=True)}
    loss = torch.tensor(0.1).item()  # the nearest number in fp32
    assert transferred([first, second]) == [
        {"train/loss": loss, "train/ratio_max": 1.5},
        {"train/loss": -3.0},
    ]


def test_a_steps_values_are_means_over_the_processes_that_have_them_and_maxima():
    first = {"train/kl": 0.2, "train/ratio_max": 1.5, "memory/peak": 7.0}
    second = {"train/kl": 0.4, "train/ratio_max": 4.0, "memory/peak": 3.0}
    found = combined([{**first, "engine/logprob_diff": 0.01}, second])
    means = {"train/kl": pytest.approx(0.3), "engine/logprob_diff": 0.01}
    assert found == {**means, "train/ratio_max": 4.0, "memory/peak": 7.0}
