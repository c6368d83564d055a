"""The report command: its files hold the right numbers, and hostile text stays text."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.metrics import measure
from svr_lightning.core.stopping import Confident, RepeatedAnswer
from svr_lightning.report.drawing import svg
from svr_lightning.report.figures import all_figures, frontier_numbers
from svr_lightning.report.formats import POLICY, page, tables_text
from svr_lightning.report.runs import Method, read_methods
from svr_lightning.report.tables import Table, all_tables, majority_vote, results
from tests.commands import refused
from tests.trajectories import (
    adaptive,
    failed,
    first_turns,
    pool,
    record,
    save,
    settings_of,
    turn_tables,
    uncensored,
)

# What tries to break out of a page, a terminal or a table.
EVIL = "".join(
    (
        "<script>alert(1)</script></style></pre></svg>]]><img src=x onerror=alert(2)>",
        '" onmouseover="alert(3)" x=\'y\'',
        "\x1b[2J\x9b31m\x07\x00\ud800\r",
        "a\u2028b\u2029c\u202egnorw\u200b",
        "\\input{/etc/passwd} $x_1^2$ & % # ~ {a} [b] *c*",
        "| [link](javascript:alert(4)) `code` **bold** <b>\n\n# heading\n",
        "\u4f60\u597d",
    )
)
NAME = EVIL.replace("=", "")  # a name ends at the first equals sign


RIGHT = (True, "C", 0.9, 5)


def config(seed: int) -> dict[str, Any]:
    return {"seed_everything": seed, "model": {"evaluation": {"max_turns": 3}}}


def uncensored_in(*datasets: str) -> list[dict[str, Any]]:
    """The six trajectories in each data set."""
    return [{**row, "dataset": name} for name in datasets for row in uncensored()]


def method_of(folder: Path, *names: str) -> Method:
    """The method whose evaluations are in ``folder``."""
    (method,) = read_methods([f"m={folder / name}" for name in names])
    return method


def test_the_same_name_is_another_data_set_or_another_seed(tmp_path):
    for name, dataset in (("a", "gsm8k"), ("b", "math500"), ("c", "gsm8k"), ("d", "math500")):
        save(tmp_path / name, uncensored_in(dataset), config(ord(name)))
    method = method_of(tmp_path, *"abcd")
    assert [list(run.tables) for run in method.runs] == [["gsm8k", "math500"]] * 2
    (table,) = [t for t in all_tables([method]) if t.name == "main_results"]
    assert table.rows[0] == ["m", *["0.500 \u00b1 0.000"] * 3]
    assert table.head == ("Method", "GSM8K", "MATH500", "All-2")
    assert [run.seed for run in method.runs] == ["97", "99"]
    # Evaluations may share a seed, whatever those of the trainings were.
    save(tmp_path / "e", uncensored_in("math500")[:3], config(ord("d")))
    method = method_of(tmp_path, *"de")
    assert [run.seed for run in method.runs] == ["#1", "#2"]
    # Right at turns 1 to 3: 2, 3 and 2 of the six; 1, 2 and 1 of a, b and c.
    (line,) = frontier_numbers([method])["panels"][0]["lines"]
    assert line["accuracy"] == pytest.approx([1 / 3, 7 / 12, 1 / 3])


def test_one_evaluation_is_not_two_seeds_whatever_its_folder_is_called(tmp_path, capsys):
    first = save(tmp_path / "a", uncensored(), config(1))
    copied = save(tmp_path / "copied", uncensored(), config(1))
    (tmp_path / "linked").symlink_to(first)
    for again in (first, f"{first}/../a", copied, tmp_path / "linked"):
        line = refused(capsys, "report", f"SVR={first}", f"SVR={again}", "--out", tmp_path / "out")
        assert line.startswith(f"SVR={again}: the evaluation of {first} again, not another seed")
    assert not (tmp_path / "out").exists()


def test_an_average_counts_the_data_sets_that_define_it_and_the_seeds_that_have_all(tmp_path):
    unsure = (False, "C", 0.7, 5)
    both = [
        record(str(i), one, dataset="gsm8k", early=True) for i, one in enumerate((RIGHT, unsure))
    ]
    save(tmp_path / "both", [*both, *first_turns((1, 1), "math500")], config(0))
    save(tmp_path / "a", both[1:], config(1))
    method = method_of(tmp_path, "both", "a")
    assert method.summary("All-2", "auroc").text == "1.000 (of 1 sets)"
    assert method.summary("GSM8K", "auroc").text == "1.000"  # the other seed does not define it
    assert method.summary("All-2", "accuracy").text == "0.750"
    assert method.summary("GSM8K", "accuracy").text == "0.250 \u00b1 0.354"
    # So does a report whose first seed lacks a data set.
    method = method_of(tmp_path, "a", "both")
    assert [row[2] for row in results([method]).rows] == ["1 or 2", "2", "4"]
    assert len(frontier_numbers([method])["panels"]) == 3


def test_what_is_said_of_a_method_holds_for_all_its_seeds(tmp_path):
    save(tmp_path / "whole", uncensored(), settings_of(Confident(), 3))
    save(tmp_path / "cut", adaptive()[:5], settings_of(Confident(threshold=0.9), 3))
    method = method_of(tmp_path, "whole", "cut")
    table = results([method])
    assert table.rows[0][2] == "5 or 6"
    assert ">= 0.85 and at most 3 turns or CORRECT at confidence >= 0.9 " in table.caption
    assert "m: no fixed budgets and no thresholds" in all_figures([method])[1][0]


def test_a_rule_of_another_package_is_neither_imported_nor_replayed(tmp_path):
    settings = config(0)
    own = {"class_path": "mine.rules.Majority"}
    settings["model"] = {"evaluation": {"stop": own, "max_turns": 3}}
    save(tmp_path / "m", uncensored(), settings)
    (run,) = method_of(tmp_path, "m").runs
    assert (run.tables["toy"].rule, run.budget) == ("mine.rules.Majority", 0)
    assert run.datasets["toy"] == measure(turn_tables(uncensored())["toy"])
    assert run.rule_text == "mine.rules.Majority and at most 3 turns"


def test_every_source_of_a_method_is_ended_by_its_own_rule_and_its_own_limit(tmp_path):
    """One part by confidence with T_max = 2, one by repetition with T_max = 3."""
    sure = record("x", (True, "C", 0.9, 10), (False, "C", 0.9, 10), dataset="gsm8k")
    again = record(
        "y",
        (False, "U", 0.5, 10),
        (True, "U", 0.5, 10),
        (False, "C", 0.9, 10),
        dataset="math500",
    )
    save(tmp_path / "sure", [sure], settings_of(Confident(), 2))
    save(tmp_path / "again", [again], settings_of(RepeatedAnswer(), 3))
    for order in (("sure", "again"), ("again", "sure")):
        method = method_of(tmp_path, *order)
        # 100 + 10 tokens of one turn; 100 + 200 + 20 of two.
        assert method.summary("GSM8K", "accuracy").mean == 1.0
        assert method.summary("GSM8K", "avg_total_tokens").mean == 110
        assert method.summary("MATH500", "accuracy").mean == 1.0
        assert method.summary("MATH500", "avg_total_tokens").mean == 320
        # Two turns are there of both; at turn 2 the first is wrong and the second is right.
        assert [row("All-2", "accuracy").mean for row in method.budgets] == [0.5, 0.5]
        assert method.at_thresholds == {}  # repetition has none
        assert method.runs[0].rule_text == (
            "CORRECT at confidence >= 0.85 and at most 2 turns (GSM8K), "
            "an answer given 2 times in a row and at most 3 turns (MATH500)"
        )


def test_a_part_that_was_recorded_as_it_stopped_leaves_the_rule_of_the_others_in_force(tmp_path):
    whole = record("x", (True, "C", 0.9, 10), (False, "C", 0.9, 10), dataset="gsm8k")
    cut = record("y", (True, "C", 0.9, 10), dataset="math500", early=True)
    save(tmp_path / "whole", [whole], settings_of(Confident(), 2))
    save(tmp_path / "cut", [cut], settings_of(Confident(), 2))
    # Of an evaluation the folder, or its samples.
    method = method_of(tmp_path, "whole", "cut/samples.jsonl")
    assert method.summary("All-2", "accuracy").mean == 1.0
    assert method.summary("All-2", "avg_total_tokens").mean == 110
    assert method.summary("GSM8K", "esr").mean == 1.0
    assert method.budgets == []  # of the second part only one turn is known


def test_votes_are_means_over_seeds(tmp_path):
    fresh = settings_of(Confident(), 3, fresh=True)
    for seed, answers in (("one", "aba"), ("two", "bba")):  # a is right
        save(tmp_path / seed, [pool("x", answers)], fresh)
    method = method_of(tmp_path, "one", "two")
    table = majority_vote([method])
    assert table.rows == [["m Maj@3", "0.500 ± 0.707", "360 ± 0"]]
    save(tmp_path / "refined", uncensored_in("refined"), settings_of(Confident(), 3))
    mixed = method_of(tmp_path, "one", "refined")
    assert mixed.votes == {}  # turns that refine each other do not vote
    assert method.budgets == mixed.budgets == []  # and the last of fresh ones is no budget


def test_tables_are_latex_with_the_rows_that_the_runs_allow(tmp_path):
    sets = ("gsm8k", "math500")
    for seed in "ab":
        save(tmp_path / seed, uncensored_in(*sets), config(ord(seed)))
    arguments = [f"{NAME}={tmp_path / 'a'}", f"{NAME}={tmp_path / 'b'}", f"b={tmp_path / 'b'}"]
    fresh = settings_of(Confident(), 3, fresh=True)
    save(tmp_path / "pool", [pool("x", "aba", dataset=name) for name in sets], fresh)
    methods = read_methods([*arguments, f"GRPO={tmp_path / 'pool'}"])
    tables = all_tables(methods)
    names = [table.name for table in tables]
    assert len(set(names)) == len(names)
    assert {re.sub("_[0-9]+$", "", name) for name in names} == {
        "main_results",
        "results",
        "variants",
        "diagnostics",
        "majority_vote",
        "seed_robustness",
        "seed_robustness_by_data_set",
        "fixed_budget_sweep",
        "confidence_threshold_accuracy",
        "confidence_threshold_operating",
    }
    text = tables_text(tables, "tex")
    assert _balanced(text)
    # Two of three samples are right; prompts of 100 tokens, completions of 10, 20 and 30.
    assert r"GRPO Maj@3 & \textbf{1.000} & 360 \\" in text
    (votes,) = (line for line in all_figures(methods)[0][0].numbers["panels"][0]["lines"][1:])
    assert votes == {"name": "GRPO, votes", "accuracy": [1.0], "tokens": [360.0]}
    assert r" $\pm$ " in text


def test_the_papers_sweeps_are_tables_by_data_set_with_marks(tmp_path):
    path = save(tmp_path / "run", uncensored_in("gsm8k", "math500"), config(42))
    found = {table.name: table for table in all_tables(read_methods([f"SVR={path}"]))}
    budgets = found["fixed_budget_sweep_1"]
    assert budgets.head == ("Budget", "GSM8K", "MATH500", "All-2")
    # Turn 1: a and e are right; turn 2: b, c, f; turn 3: b and d. Adaptive: a, c, d.
    assert [row[:2] for row in budgets.rows] == [
        ["K=1", "0.333"],
        ["K=2", "0.500"],
        ["K=3", "0.333"],
        ["Adaptive", "0.500"],
    ]
    # The adaptive row does not compete; K=1 and K=3 share the second place.
    ranks = enumerate(("second", "best", "second"))
    assert budgets.marks == {(row, column): rank for row, rank in ranks for column in (1, 2, 3)}
    accuracy = found["confidence_threshold_accuracy_1"]
    assert accuracy.head == ("\u03b3", "GSM8K", "MATH500", "All-2")
    # At .80 a, c, d, e are right, from .85 on a, c, d; at .95 a again, and b at turn 2, and d.
    by_threshold = {row[0]: row[1] for row in accuracy.rows}
    assert len(by_threshold) == 10
    assert [by_threshold[one] for one in ("0.80", "0.85", "0.95")] == ["0.667", "0.500", "0.500"]
    assert {"variants", "diagnostics"}.isdisjoint(found)  # which compare methods
    operation = found["confidence_threshold_operating_1"]
    assert operation.head == ("\u03b3", "Acc.", "Turns", "Tokens", "ESR", "PSE")
    (chosen,) = (row for row in operation.rows if row[0] == "0.85")
    assert chosen[1:] == ["0.500", "2.17", "555", "0.500", "0.167"]


def test_the_papers_tables_of_variants_and_of_seeds_have_its_rows_and_columns(tmp_path):
    sets = ("countdown", "gsm8k", "math500")
    for name, labels, seed in (("a", (1, 1), 97), ("b", (1, 0), 98), ("ablated", (0, 0), 97)):
        save(tmp_path / name, first_turns(labels, *sets), config(seed))
    given = ("SVR", "a"), ("SVR", "b"), ("w/o", "ablated")
    methods = read_methods([f"{name}={tmp_path / folder}" for name, folder in given])
    found = {table.name: table for table in all_tables(methods)}
    variants = found["variants"]
    assert variants.head == ("Method", "All-3", "Turns", "ESR", "PSE", "Brier", "Overconf.")
    # PSE: none of SVR's first seed and half of its second; all of the other's answers.
    assert [row[0] for row in variants.rows] == ["SVR", "w/o"]
    assert [row[4] for row in variants.rows] == ["0.250 \u00b1 0.354", "1.000"]
    detail = found["diagnostics"]
    assert detail.head == ("Metric", "Method", "Countdown", "GSM8K", "MATH500", "All-3")
    metrics = ["Acc.", "Turns", "ESR", "PSE", "Brier", "Overconf."]
    assert [row[:2] for row in detail.rows[::2]] == [[metric, "SVR"] for metric in metrics]
    assert detail.rows[7] == ["PSE", "w/o", *["1.000"] * 4]
    assert found["seed_robustness_1"].head == ("Seed", "Acc.", "Turns", "Tokens", "ESR", "PSE")
    assert [row[:2] for row in found["seed_robustness_1"].rows] == [
        ["97", "1.000"],
        ["98", "0.500"],
        ["Mean \u00b1 Std.", "0.750 \u00b1 0.354"],
    ]
    # 1 and 1/2: mean 3/4, sample standard deviation sqrt(2 * (1/4)^2).
    spread = [0.75 - 0.125**0.5, 0.75 + 0.125**0.5]
    ((svr, _),) = (panel["points"] for panel in frontier_numbers(methods)["panels"])
    assert svr["accuracy_interval"] == pytest.approx(spread)
    seeds = found["seed_robustness_by_data_set_1"]
    assert seeds.head == ("Metric", "Seed", "Countdown", "GSM8K", "MATH500", "All-3")
    assert [row[0] for row in seeds.rows[::3]] == ["Acc.", "Turns", "Tokens", "ESR", "PSE"]
    assert [row[2] for row in seeds.rows[:3]] == ["1.000", "0.500", "0.750 \u00b1 0.354"]


def test_the_best_of_a_column_is_bold_and_the_second_underlined_in_every_form(tmp_path):
    shares = {"first": (1, 1, 1), "second": (1, 1, 0), "third": (0, 0, 1), "also second": (0, 1, 1)}
    for name, labels in shares.items():
        save(tmp_path / name, first_turns(labels))
    methods = read_methods([str(tmp_path / name) for name in shares])
    tables = all_tables(methods)
    main = tables[0]
    assert main.marks == {(0, 1): "best", (1, 1): "second", (3, 1): "second"}
    tex, md = (tables_text([main], form) for form in ("tex", "md"))
    assert r"first & \textbf{1.000} \\" in tex
    assert r"also second & \underline{0.667} \\" in tex
    assert "| third | 0.333 |" in md
    assert "| first | **1.000** |" in md
    assert "| second | <ins>0.667</ins> |" in md
    html = page(methods, [], [], tables)
    assert '<abbr title="early stop rate">ESR</abbr>' in html
    assert '<abbr title="area under risk and coverage">AURC</abbr>' in html
    assert '<td class="best">1.000</td>' in html
    assert html.count('<td class="second">0.667</td>') == 2
    # One row, or equal ones, have no best.
    (alone, *_) = all_tables(methods[:1])
    assert not alone.marks


def test_a_table_keeps_names_in_any_script_and_its_rows_apart():
    table = Table(
        name="t",
        caption="\u03b3 >= 0.5",
        head=("\u65b9\u6cd5", "a|b"),
        rows=[["[2] M\u00fcller", "0.5 \u00b1 0.1"], ["*", "1 < 2"], ["50 % & more_", "--"]],
    )
    assert tables_text([table], "tex") == "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            r"\caption{$\gamma$ \textgreater{}= 0.5}",
            r"\label{tab:t}",
            r"\begin{tabular}{lr}",
            r"\toprule",
            "\u65b9\u6cd5 & a\\textbar{}b \\\\",
            r"\midrule",
            "{}[2] M\u00fcller & 0.5 $\\pm$ 0.1 \\\\",
            r"{}* & 1 \textless{} 2 \\",
            r"50 \% \& more\_ & -- \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )
    assert tables_text([table], "md").splitlines() == [
        "**t** \u03b3 &gt;= 0.5",
        "",
        "| \u65b9\u6cd5 | a\\|b |",
        "| :-- | --: |",
        "| \\[2\\] M\u00fcller | 0.5 \u00b1 0.1 |",
        "| \\* | 1 &lt; 2 |",
        "| 50 % &amp; more\\_ | -- |",
    ]


def _balanced(text: str) -> bool:
    plain = re.sub(r"\\[{}]", "", text)
    return plain.count("{") == plain.count("}")


def test_a_method_without_self_checks_has_nothing_that_would_need_them(tmp_path):
    right, wrong = (True, None, None, 5), (False, None, None, 5)
    save(tmp_path / "mt", [record("x", right, right), record("y", wrong, right)])
    protocol = {"protocol": {"max_turns": 1}, "model": {"evaluation": {"max_turns": 10}}}
    save(tmp_path / "one", [record("x", right), record("y", wrong)], protocol)
    save(tmp_path / "svr", uncensored())
    methods = read_methods([str(tmp_path / name) for name in ("mt", "one", "svr")])
    assert [method.runs[0].self_checks for method in methods] == [False, False, True]
    found = {table.name: table for table in all_tables(methods)}
    # Final 1 (both are right at turn 2), any 1, 2 turns, 10 tokens and prompts of 100 and 200.
    row = found["results"].rows[0]
    assert row[:5] == ["mt", "toy", "2", "1.000", "0.342 to 1.000"]
    assert row[5:9] == ["0.500", "1.000", "2.00", "310"]
    assert set(row[9:]) == {"--"}
    assert "mt: 2 fixed turns; one: one turn; svr: CORRECT at" in found["results"].caption
    figures, notes = all_figures(methods)
    assert [figure.name for figure in figures] == ["1_tokens", "2_reliability_3", "3_thresholds_3"]
    assert not any("fixed budgets" in note for note in notes)
    assert "mt: no figures of confidence, because no turn states one." in notes
    for figure in figures:
        assert svg(figure.draw, figure.numbers).startswith("<?xml")


def test_data_sets_outside_of_the_papers_are_in_no_average_and_methods_need_no_common_one(tmp_path):
    for name, right, tokens in (("inside", True, 5), ("outside", False, 7)):
        row = record("x", (right, "C", 0.9, tokens), dataset=name, early=True)
        save(tmp_path / name, [row])
    both = [f"SVR={tmp_path / name}" for name in ("inside", "outside")]
    methods = read_methods(both)
    main_results, results, *_ = all_tables(methods)
    assert main_results.head == ("Method", "inside", "outside")
    assert [(row[1], row[3], row[8]) for row in results.rows] == [
        ("inside", "1.000", "105"),
        ("outside", "0.000", "107"),
    ]
    figures, notes = all_figures(read_methods([f"a={both[0][4:]}", f"b={both[1][4:]}"]))
    points = [[p["name"] for p in panel["points"]] for panel in figures[0].numbers["panels"]]
    assert points == [["a"], ["b"]]
    assert "No data set is common to all methods, so they cannot be compared." in notes


def test_an_average_that_no_method_has_gives_way_to_the_data_sets(tmp_path):
    for name in ("gsm8k", "amc23"):
        save(tmp_path / name, [record("x", RIGHT, dataset=name)])
    (plot, *_), _ = all_figures(read_methods([str(tmp_path / "gsm8k"), str(tmp_path / "amc23")]))
    points = {panel["name"]: len(panel["points"]) for panel in plot.numbers["panels"]}
    assert points == {"GSM8K": 1, "AMC23": 1}
    assert svg(plot.draw, plot.numbers)


def test_every_file_marks_a_method_whose_prompts_showed_labels_and_no_other(tmp_path):
    unchecked = uncensored()
    for one in (one for row in unchecked for one in row["turns"]):
        one |= {"verdict": "UNSURE", "confidence": 0.5}
    for name, rows in (("plain", uncensored()), ("labels", unchecked)):
        shown = {"max_turns": 3, "privileged": name == "labels"}
        save(tmp_path / name, rows, {"model": {"evaluation": {}}, "protocol": shown})
    arguments = [f"SVR={tmp_path / 'plain'}", f"Oracle-guided={tmp_path / 'labels'}"]
    assert main(["report", *arguments, "--out", str(tmp_path)]) == 0
    files = ("index.html", "tables.tex", "figures/1_tokens.json")
    texts = [unescape((tmp_path / name).read_text(encoding="utf-8")) for name in files]
    for text in texts:
        marked = text.count("privileged: Oracle-guided")
        assert text.count("Oracle-guided") == text.count("privileged:") == marked > 0


_IMAGE = "data:image/svg+xml;base64,"


class _Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A report on records in which every text is hostile, one of them a mebibyte long."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for index, row in enumerate(uncensored()):
        said = [{**t, "text": EVIL + t["text"], "answer": EVIL} for t in row["turns"]]
        evil = {"dataset": EVIL, "id": f"{index}{EVIL}", "question": EVIL, "reference": EVIL}
        rows.append({**row, **evil, "turns": said})
    rows[0]["turns"][0]["text"] = EVIL * (2**20 // len(EVIL))
    rows[1]["question"] = "x" * 2**20
    settings = {**config(1), "policy": EVIL, EVIL: EVIL}
    save(folder / "run", rows, settings)
    arguments = [f"{NAME}={folder / 'run'}", "--out", str(folder / "report")]
    assert main(["report", *arguments]) == 0
    return folder / "report"


def test_hostile_text_stays_text_on_the_page(hostile):
    page = (hostile / "index.html").read_bytes().decode("ascii")
    assert all(c == "\n" or c == "\t" or c.isprintable() for c in page)
    reader = _Reader()
    reader.feed(page)
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "svg", "iframe", "object", "embed", "link", "base", "form", "a b"}
    assert page.count("</style>") == sum(tag == "style" for tag, _ in reader.tags)
    ids = {attributes["id"] for _, attributes in reader.tags if "id" in attributes}
    for tag, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("src") or _IMAGE).startswith(_IMAGE), tag
        assert (attributes.get("href") or "#results")[1:] in ids
    assert "<script>alert(1)</script>" in reader.text
    assert "\u202e" not in reader.text
    assert len(page) < 1_500_000  # of texts of two mebibytes
    # The page loads nothing and says so.
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in page
    assert "script-src" not in POLICY
    assert not re.search(r"https?:|@import|url\(", page)


def test_hostile_text_stays_text_in_every_other_file(hostile):
    table = (hostile / "tables.tex").read_text(encoding="utf-8")
    assert "\\input" not in table
    assert _balanced(table)
    assert "\u4f60\u597d" in table
    assert all(c == "\n" or c.isprintable() for c in table)
    markdown = (hostile / "tables.md").read_text(encoding="utf-8")
    assert not re.search(r"<(?!ins>|/ins>)|(?<!\\)[\[`]", markdown)
    assert "\u4f60\u597d" in markdown
    drawings = sorted((hostile / "figures").glob("*.svg"))
    assert len(drawings) == 3
    for file in drawings:
        root = ElementTree.fromstring(file.read_bytes())
        assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
            "svg",
            "defs",
            "style",
            "g",
            "path",
            "use",
            "clipPath",
            "rect",
        }
        json.loads(file.with_suffix(".json").read_text(encoding="ascii"))


@pytest.mark.filterwarnings("error")
def test_an_evaluation_in_which_no_problem_could_be_run_is_reported(tmp_path):
    path = save(tmp_path / "run", [failed("x")], {"protocol": {"max_turns": 3}})
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "| run | toy | 1 | 0.000 |" in (tmp_path / "out" / "tables.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m={folder}"], "eval/one"),
        (["m={folder}/log.csv"], "log.csv: a log has no verdicts; replay and certify read logs"),
        (["={folder}/eval/one"], "NAME=FOLDER"),
        (["{folder}/eval/one", "{folder}/eval/one/../one"], "a run before it is called 'one', too"),
        (["m={folder}/unlabelled"], "no label"),
        (["m={folder}/eval/one", "--out", "{folder}/file/x"], "file is a file"),
    ],
)
def test_a_fault_of_the_command_line_is_one_line(arguments, words, tmp_path, capsys):
    save(tmp_path / "eval" / "one", first_turns((1,)))
    save(tmp_path / "unlabelled", [record("x", (None, "C", 0.9, 5), early=True)])
    (tmp_path / "file").touch()
    (tmp_path / "log.csv").write_text("id,confidence,correct\n1,0.5,yes\n")
    given = ["--out", "{folder}/out", *arguments]
    assert words in refused(capsys, "report", *(one.format(folder=tmp_path) for one in given))
