"""The configurations against a table that was typed from the paper's appendix, number by number."""

from dataclasses import asdict
from typing import Any

import pytest

from svr_lightning.core.rewards import RewardWeights
from tests.commands import CONFIGS, dotted
from tests.commands import layer as read

SHARED = {  # section "Training hyperparameters"
    "seed_everything": 42,
    "trainer.devices": 4,
    "trainer.strategy": "deepspeed_stage_2",
    "trainer.precision": "bf16-true",
    "trainer.max_epochs": 1,
    "model.policy.path": "Qwen/Qwen3.5-2B",
    "model.policy.gradient_checkpointing": True,
    "model.policy.max_prompt_tokens": 4096,
    "model.policy.max_model_len": 8192,
    "model.recipe.class_path": "svr_lightning.recipes.svr.SVR",
    "model.recipe.init_args.group_size": 8,
    "model.recipe.init_args.horizon": 3,
    "model.recipe.init_args.scale_rewards": "group",
    "model.recipe.init_args.loss.ratio": "token",
    "model.recipe.init_args.loss.clip_eps": 0.2,
    "model.recipe.init_args.loss.beta": 0.08,
    "model.sampling.temperature": 0.9,
    "model.sampling.top_p": 1.0,
    "model.optimizer.lr": 4e-8,
    "model.optimizer.weight_decay": 0.1,
    "model.optimizer.betas": [0.9, 0.95],
    "model.optimizer.gradient_clip_val": 2.0,
    "model.optimizer.warmup_fraction": 0.05,
    "model.optimizer.decay_fraction": 0.20,
    "model.optimizer.floor": 0.05,
    "model.reference.mix": 0.6,
    "model.evaluation.max_turns": 10,
    "model.evaluation.temperature": 0.0,
    "model.micro_batch_size": 8,
    "data.problems_per_step": 16,
}
RUNS = {  # table "Task-dependent generation and length-control parameters", and section A.1
    "countdown": {"generation": 800, "length": 768, "sync": 80},
    "gsm8k": {"generation": 1200, "length": 1024, "sync": 40},
    "math": {"generation": 2048, "length": 1536, "sync": 40},
}
MATH_5 = ("math500", "aime26", "amc23", "olympiadbench", "minerva_math")
TESTED = {
    "countdown": ("countdown",),
    "gsm8k": ("gsm8k",),
    "math": MATH_5,
    "eval/math5": MATH_5,
    "eval/all7": ("countdown", "gsm8k", *MATH_5),
}
EVALUATED = {  # maximum completion lengths, where each data set lies, and which rows are tested on
    "countdown": (800, "Jiayi-Pan/Countdown-Tasks-3to4", "train", "countdown_eval"),
    "gsm8k": (1200, "openai/gsm8k", "test", None),
    "math500": (2048, "HuggingFaceH4/MATH-500", "test", None),
    "aime26": (3072, "MathArena/aime_2026", "train", None),
    "amc23": (2048, "math-ai/amc23", "test", None),
    "olympiadbench": (4096, "math-ai/olympiadbench", "test", None),
    "minerva_math": (3072, "math-ai/minervamath", "test", None),
}
GENERATIONS = {  # 24 per problem: trajectories x turns, or drafts and refinements
    **dict.fromkeys(("grpo", "gspo_matched", "gspo_published", "rlcr", "rlcr_log"), (24, 1)),
    "igrpo": (12, 1),
    **dict.fromkeys(("grpo_mt", "murphy", "murphy_tree", "mlmt_rl", "scrpo", "oracle"), (8, 3)),
    **dict.fromkeys(("rlcr_turns", "svr_proper", "svr_turns"), (8, 3)),
    **dict.fromkeys(("svr_plus", "svr_plus_exact", "svr_plus_matched"), (8, 3)),
}
OWN = {  # what a layer is named for
    "gspo_matched": {"loss": {"ratio": "sequence"}},
    "gspo_published": {
        "loss": {"ratio": "sequence", "clip_eps": 3e-4, "clip_eps_high": 4e-4, "beta": 0.0}
    },
    "igrpo": {"drafts": 12},
    "murphy": {"shape": "chain"},
    "murphy_tree": {"shape": "tree"},
    "svr_proper": {"proper": True},
    "svr_plus": {"turns": "drawn", "sections": True, "proper": True},
    "svr_plus_matched": {"turns": "drawn", "sections": True, "proper": True, "optimised": 8},
    "svr_turns": {"turns": "drawn", "sections": False, "proper": False},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_every_number_of_the_paper(name):
    config = read(name)
    assert dotted(config).items() >= SHARED.items()
    assert "stop" not in config["model"]["evaluation"]  # the paper's rule
    run = RUNS[name]
    assert config["model"]["sampling"]["max_completion_tokens"] == run["generation"]
    assert config["model"]["recipe"]["init_args"]["length_scale"] == run["length"]
    assert config["model"]["reference"]["every"] == run["sync"]
    assert config["model"]["recipe"]["init_args"]["weights"] == asdict(RewardWeights())


def rows(source: dict[str, Any]) -> tuple[Any, ...]:
    return source["path"], source["split"], source.get("select")


@pytest.mark.parametrize("name", TESTED)
def test_the_test_sets_are_the_papers_with_their_limits(name):
    sets = {source["name"]: source for source in read(name)["data"]["test"]}
    assert tuple(sets) == TESTED[name]
    for key, source in sets.items():
        assert (source["max_completion_tokens"], *rows(source)) == EVALUATED[key]
        assert "limit" not in source


TRAINED = {
    "countdown": ("Jiayi-Pan/Countdown-Tasks-3to4", "train", "countdown_train"),
    "gsm8k": ("openai/gsm8k", "train"),
    "math": ("DigitalLearningGmbH/MATH-lighteval", "train"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_no_row_is_trained_on_and_tested(name):
    data = read(name)["data"]
    train = rows(data["train"])
    assert train[: len(TRAINED[name])] == TRAINED[name]
    parts = [train, *map(rows, data["val"]), *map(rows, data["test"])]
    assert len(set(parts)) == len(parts)
    # Of one file, two parts differ by the choice of rows alone.
    shared = [part for part in parts[1:] if part[:2] == train[:2]]
    assert all(part[2] and part[2] != train[2] for part in shared)


def test_every_method_takes_24_generations_of_a_problem():
    names = {path.stem for path in (CONFIGS / "methods").glob("*.yaml")}
    assert names == GENERATIONS.keys() | {"countdown_single_turn"}
    for name, (group, turns) in GENERATIONS.items():
        options = read(f"methods/{name}")["model"]["recipe"]["init_args"]
        assert options["group_size"] == group, name
        assert options.get("horizon", turns) == turns, name
        assert group * turns + options.get("drafts", 0) == 24, name


@pytest.mark.parametrize("name", OWN)
def test_a_method_has_the_options_that_it_is_named_for(name):
    options = read(f"methods/{name}")["model"]["recipe"]["init_args"]
    assert {key: options[key] for key in OWN[name]} == OWN[name]
    updates = read(f"methods/{name}")["model"].get("updates_per_rollout", 1)
    assert updates == (4 if name == "gspo_published" else 1)


def test_single_turn_methods_on_countdown_may_take_2048_tokens():
    layer = read("methods/countdown_single_turn")
    assert layer == {"model": {"sampling": {"max_completion_tokens": 2048}}}


def test_votes_are_drawn_as_in_the_paper():
    evaluation = read("eval/majority_vote")["model"]["evaluation"]
    drawn = {key: evaluation[key] for key in ("temperature", "top_p", "top_k")}
    assert drawn == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert evaluation["fresh_turns"] is True
    assert evaluation["max_turns"] >= 10  # the largest k of Maj@k
