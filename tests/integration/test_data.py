"""Which problems each process sees, in which order."""

import json
import logging
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import fresh_source
from svr_lightning.training.sources import DataSource

FILE = Path(mkdtemp()) / "rows.jsonl"
FILE.write_text("".join(f'{{"question": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(37)))


def made(name: str = "made", count: int = 37, **settings: Any) -> DataSource:
    return DataSource(name=name, task="gsm8k", path=str(FILE), limit=count, **settings)


def module(rank: int = 0, ranks: int = 1, **settings: Any) -> SVRDataModule:
    """A data module as process ``rank`` of ``ranks`` holds it."""
    data = SVRDataModule(**{"train": made(), "problems_per_step": 8, **settings})
    place = {"global_rank": rank, "world_size": ranks, "lightning_module": None}
    data.trainer = SimpleNamespace(**place)  # type: ignore[assignment]
    return data


def epoch(data: SVRDataModule, number: int = 0) -> list[list[str]]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
    return [[problem.id for problem in batch] for batch in loader]


def test_the_order_follows_from_seed_and_epoch_alone():
    first = epoch(module())
    torch.manual_seed(123)
    assert epoch(module()) == first
    assert epoch(module(), number=1) != first
    assert epoch(module(seed=43)) != first
    assert epoch(module(), number=1) == epoch(module(), number=1)
    # default_rng([42, 0]).permutation(37), recorded once: a numpy that draws differently would
    # make a resumed run see other problems.
    assert first[0] == [f"made/{number}" for number in (27, 18, 26, 5, 4, 23, 36, 7)]


def test_an_epoch_drops_the_last_incomplete_batch_and_repeats_nothing():
    batches = epoch(module())
    assert [len(batch) for batch in batches] == [8, 8, 8, 8]  # 37 = 4 * 8 + 5
    assert len({id_ for batch in batches for id_ in batch}) == 32
    assert len(module().train_dataloader()) == 4


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_cut_every_global_batch_into_contiguous_slices(ranks):
    whole = epoch(module(), number=3)
    shares = [epoch(module(rank, ranks), number=3) for rank in range(ranks)]
    joined = [[id_ for share in shares for id_ in share[step]] for step in range(len(whole))]
    assert joined == whole


@pytest.mark.parametrize(
    ("stage", "settings", "message"),
    [
        ("fit", {"problems_per_step": 64}, r"37 problems are fewer than the 64 of one rollout"),
        ("fit", {"rank": 1, "ranks": 3}, r"problems_per_step=8 must be a multiple of the 3 proc"),
        ("fit", {"train": None}, r"nothing to train on: set data\.train"),
        ("validate", {}, r"there are no problems: set data\.val"),
        ("test", {}, r"there are no problems: set data\.test"),
        ("predict", {}, r"there are no problems: set data\.questions, or give --question"),
        ("test", {"test": [made("x"), made("x")]}, r"data\.test: the names .* must differ"),
        ("test", {"test": [made("math"), made("x")]}, r"\['math'\] are the names of averages"),
        ("predict", {"questions": ["fine", " "]}, "question 1 is empty"),
        ("predict", {"questions": ["x" * 100_001]}, "the question 0 has 100001 characters"),
        ("predict", {"questions": ["x"], "questions_task": "chess"}, "unknown task 'chess'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work_begins(stage, settings, message):
    with pytest.raises(ConfigError, match=message):
        module(**settings).setup(stage)
    SVRDataModule(train=made("math"), val=[made("all")])  # an average's name is free alone


def test_a_fresh_draw_depends_on_its_arguments_alone():
    data = module()
    excluded = {problem.id for problem in data.problems("train")[0][:30]}
    draw = data.fresh_problems(5, 4, excluded)
    assert len({problem.id for problem in draw}) == 4
    assert not {problem.id for problem in draw} & excluded
    data.fresh_problems(6, 4)
    assert data.fresh_problems(5, 4, excluded) == draw
    assert module(rank=1, ranks=2).fresh_problems(5, 4, excluded) == draw
    assert data.fresh_problems(6, 4, excluded) != draw
    all_but_three = {problem.id for problem in data.problems("train")[0][3:]}
    left = {problem.id for problem in data.fresh_problems(0, 8, all_but_three)}
    assert left == {"made/0", "made/1", "made/2"}


def test_processes_share_a_fresh_draw_and_none_gets_the_problems_of_another():
    batch = frozenset({"made/3", "made/4"})
    shares = [
        fresh_source(module(rank=rank, ranks=2), 5, 0, batch, list)(1, 17, frozenset())
        for rank in range(2)
    ]
    ids = [problem.id for share in shares for problem in share]
    assert [len(share) for share in shares] == [17, 17]
    assert len(set(ids)) == 34
    assert not batch & set(ids)


def test_a_set_smaller_than_the_number_of_processes_is_refused():
    data = module(rank=0, ranks=4, test=[made("few", 3)])
    with pytest.raises(ConfigError, match=r"3 problems cannot .* set trainer\.devices to at most"):
        data.test_dataloader()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_cover_an_evaluation_set_exactly_once_in_file_order(ranks):
    sources = [made("one", 23, max_completion_tokens=99), made("two", 7)]
    shares = []
    for rank in range(ranks):
        data = module(rank, ranks, val=sources, eval_batch_size=4)
        loaders = data.val_dataloader()
        assert [source.name for source in data.sources["val"]] == ["one", "two"]
        assert data.sources["val"][0].max_completion_tokens == 99
        shares.append([[problem.id for batch in loader for problem in batch] for loader in loaders])
        assert max(len(batch) for loader in loaders for batch in loader) <= 4
        assert len(loaders[0]) == len(list(loaders[0]))
    for index, size in ((0, 23), (1, 7)):
        whole = [problem.id for problem in module(val=sources).problems("val")[index]]
        assert len(whole) == size
        assert [share[index] for share in shares] == [whole[rank::ranks] for rank in range(ranks)]


def test_setup_reads_what_its_stage_needs_and_logs_a_fingerprint(tmp_path, caplog):
    missing = DataSource(name="gone", task="math", path=str(tmp_path / "gone.jsonl"))
    data = module(test=[missing])
    with caplog.at_level(logging.INFO):
        data.setup("fit")
    assert "data.train: 37 gsm8k problems of 'made'\n" in caplog.text
    assert "), sha256 " in caplog.text
    with pytest.raises(ConfigError, match="gone"):
        data.setup("test")
    with pytest.warns(UserWarning, match="data.val: 5 of 5 problems of data source 'dev' .* are"):
        module(val=[made("dev", 5)]).setup("fit")


def test_bad_rows_of_every_part_are_skipped_where_asked(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n{"question": "2 + 2?"}\n')
    source = DataSource(name="toy", task="gsm8k", path=str(path))
    with pytest.raises(ConfigError, match="1 of 2 rows cannot be used"):
        SVRDataModule(val=[source]).setup("validate")
    data = SVRDataModule(val=[source], on_bad_row="skip")
    data.setup("validate")
    assert [problem.id for problem in data.problems("val")[0]] == ["toy/0"]


def test_questions_of_the_users_own_become_problems_without_a_reference():
    data = module(questions=["What is 6 * 7?", "And 7 * 6?"], questions_task="gsm8k")
    data.setup("predict")
    (loader,) = data.predict_dataloader()
    assert [problem for batch in loader for problem in batch] == [
        Problem(id="questions/0", task="gsm8k", question="What is 6 * 7?", reference=""),
        Problem(id="questions/1", task="gsm8k", question="And 7 * 6?", reference=""),
    ]
    assert data.sources["predict"][0].name == "questions"


def test_a_local_file_stands_for_the_hubs_data_set_and_never_for_a_path_of_the_users_own(tmp_path):
    row = json.dumps({"question": "1+1?", "answer": "#### 2"}) + "\n"
    for name in ("stand_in", "own"):
        (tmp_path / f"{name}.jsonl").write_text(row)
    files = {"gsm8k_train": str(tmp_path / "stand_in.jsonl")}

    def read_from(path):
        source = DataSource(name="gsm8k_train", task="gsm8k", path=path)
        data = SVRDataModule(train=source, local_files=files, problems_per_step=1)
        return data.sources["train"][0].path

    assert read_from("openai/gsm8k") == files["gsm8k_train"]
    own = str(tmp_path / "own.jsonl")
    assert read_from(own) == own
    assert read_from("missing.jsonl") == "missing.jsonl"  # and loading it says so
