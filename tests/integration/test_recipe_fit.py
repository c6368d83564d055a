"""Every recipe trains and evaluates a policy in the one trainer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from svr_lightning.callbacks import RolloutLog
from svr_lightning.core.types import Decoding
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.recipes.base import Recipe
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import Rollout, SVRModule
from tests import small_fit
from tests.commands import jsonl, logged, read_json
from tests.recipes import RECIPES

CHAINS = {"group_size": 2, "horizon": 2}, 4, 2
# recipe: its options, generations per problem, turns of a validation with T_max = 2
# ScRPO compares the corrections of wrong answers, of which a problem needs two.
SMALL = {
    "svr_turns": CHAINS,
    "svr_plus": ({"group_size": 2, "horizon": 2, "turns": "all"}, 4, 2),
    "svr_verdict": CHAINS,
    "grpo": ({"group_size": 4}, 4, 1),
    "grpo_mt": CHAINS,
    "igrpo": ({"group_size": 2, "drafts": 2}, 4, 1),
    "murphy": CHAINS,
    "murphy_tree": CHAINS,
    "mlmt_rl": ({"group_size": 2}, 6, 1),
    "scrpo": ({"group_size": 4, "horizon": 2}, 8, 2),
    "oracle": CHAINS,
    "rlcr_turns": CHAINS,
}

LEARNS_IN_PARTS = {"svr_plus", "scrpo"}
"""Solutions apart from self-checks, and of corrections the analysis alone."""

PROBLEMS = 4
"""Of a step."""


def fit(recipe: Recipe, folder: Path, *callbacks: Callback) -> small_fit.Remembering:
    """One optimizer step, in which some problem's answers do not all earn the same; a validation.

    Few completions of the policy are longer than its 64 tokens.
    """
    module = small_fit.module(
        policy=PolicyConfig(max_prompt_tokens=640, max_model_len=800),
        recipe=recipe,
        sampling=Decoding(max_completion_tokens=64),
        evaluation=EvaluationConfig(max_turns=2, adaptive=False, max_completion_tokens=24),
    )
    trainer = small_fit.trainer(
        folder,
        RolloutLog(every=1),
        *callbacks,
        max_steps=1,
        limit_val_batches=1,
        check_val_every_n_epoch=None,
        val_check_interval=1,
        logger=CSVLog(folder),
    )
    trainer.fit(module, small_fit.data(problems_per_step=PROBLEMS))
    return module


class Optimised(Callback):
    """Keeps the texts whose tokens are in the loss, one for each sequence."""

    def __init__(self) -> None:
        self.texts = []

    def on_train_batch_end(
        self, trainer: Any, module: SVRModule, outputs: Any, rollout: Rollout, batch_idx: int
    ) -> None:
        for batch in (one for step in rollout.steps for one in step):
            tokens = batch.input_ids[batch.rows, batch.logit_positions + 1]
            sequences = batch.mask.nonzero()[:, 0]  # two parts of a turn share a row of ids
            self.texts += [
                module.actor.renderer.completion_text(tokens[sequences == index].tolist())
                for index in range(len(batch.group_ids))
            ]


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_trains_and_evaluates(name, tmp_path, capsys):
    options, generations, turns = SMALL[name]
    optimised = Optimised()
    module = fit(replace(RECIPES[name][0], **options), tmp_path, optimised)
    assert module.trainer.global_step == 1
    assert not all(group.degenerate for group in module.rollout.groups)
    assert logged(tmp_path)["train/grad_norm"][1] > 0
    written = {turn.completion.text for turn in small_fit.turns_of(module)}
    parts = set(optimised.texts) - written
    assert bool(parts) == (name in LEARNS_IN_PARTS)
    assert all(any(part in text for text in written) for part in parts)
    lines = jsonl(tmp_path / "rollouts.jsonl")
    assert sum(len(line["turns"]) for line in lines) == PROBLEMS * generations
    results = read_json(tmp_path / "eval" / "step-000001" / "results.json")
    assert results["datasets"]["dev"]["turns"] == turns
    assert results["config"]["protocol"] == {
        "max_turns": turns,
        "adaptive": False,
        "privileged": name == "oracle",
    }
    # What is privileged is marked in the file, on the screen and in the results.
    assert all(("privileged" in line) == (name == "oracle") for line in lines)
    assert ("privileged" in capsys.readouterr().out) == (name == "oracle")
