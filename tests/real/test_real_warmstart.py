"""``svr warmstart`` on a pretrained language model that has never seen a self-check."""

import pytest

from svr_lightning.__main__ import main
from tests.commands import jsonl, read_json, write_jsonl

pytestmark = pytest.mark.real
COLOURS = [
    "red",
    "blue",
    "green",
    "white",
    "black",
    "yellow",
    "brown",
    "pink",
    "grey",
    "orange",
    "purple",
    "gold",
]


def test_it_learns_the_form_from_its_own_words(model_folder, tmp_path):
    asked = [{"id": name, "question": f"Name a thing that is {name}."} for name in COLOURS]
    rows = write_jsonl(tmp_path / "rows.jsonl", asked)
    run = [
        "warmstart",
        f"--model.policy.path={model_folder}",
        "--model.policy.max_prompt_tokens=256",
        "--model.policy.max_model_len=512",
        "--model.sampling.max_completion_tokens=24",
        f"--data.train={{name: things, task: tests.real.vowels.LastWord, path: {rows}}}",
        "--trainer.logger=false",
        "--start.prompt=Reply with one word.",
        "--start.held_out=2",
        "--start.passes=0.5",
        "--start.samples=4",
    ]
    folder = tmp_path / "run"
    assert main([*run, f"--trainer.default_root_dir={folder}"]) == 0
    answers = jsonl(folder / "eval" / "plain" / "samples.jsonl")
    assert len(answers) == 10
    assert not any("<self_check>" in turn["text"] for one in answers for turn in one["turns"])
    facts = read_json(folder / "warmstart.json")
    assert facts["answers"] == 40
    assert 16 <= facts["turns"] <= 50
    assert (folder / "policy" / "svr.json").is_file()
