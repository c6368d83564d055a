"""``python -m experiments.problems``: write the embedded data sets that ship with the package."""

import json
from pathlib import Path
from typing import Any

from experiments.problems import countdown, word_problems
from svr_lightning import tiny
from svr_lightning.files import write_file

FOLDER = Path(tiny.__file__).parent


def data_sets() -> dict[str, list[dict[str, Any]]]:
    """The rows of every split, by task and split. Two are there in one order of numbers as well."""
    return {
        **{f"countdown/{split}": countdown.rows(split) for split in countdown.SPLITS},
        **{f"countdown/{split}_one_order": countdown.rows(split, 1) for split in ("dev", "test")},
        **{f"arithmetic/{split}": word_problems.rows(split) for split in word_problems.SIZES},
    }


def main() -> None:
    """Write each as a file of JSON lines."""
    for name, rows in data_sets().items():
        write_file(FOLDER / f"{name}.jsonl", (f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()
