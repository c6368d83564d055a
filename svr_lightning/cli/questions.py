"""Questions for ``predict`` from a file."""

import json
from pathlib import Path

from svr_lightning.errors import ConfigError, require


def with_questions(command: str, arguments: list[str]) -> list[str]:
    """The arguments with ``--question`` and ``--questions`` as entries of ``data.questions``."""
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in ("--question", "--questions"):
            rest.append(word)
            continue
        require(command == "predict", f"{flag} is for predict; {command} takes data sets")
        value = value if equals else next(words, "")
        for question in read_questions(value) if flag == "--questions" else [value]:
            rest += ["--data.questions+", question]
    return rest


def read_questions(path: str) -> list[str]:
    """The questions of a text file, one per line, or of a ``.jsonl`` with "question" in each row.

    Raises:
        ConfigError: naming the file and the line that cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--questions {path}: cannot be read as UTF-8 text ({error})") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    require(bool(numbered), f"--questions {path}: there are no questions in it")
    if not path.endswith((".jsonl", ".json")):
        return [line for _, line in numbered]
    questions = []
    for number, line in numbered:
        try:
            question = json.loads(line)["question"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f'--questions {path}:{number}: must be a JSON object with "question"'
            ) from error
        require(
            isinstance(question, str) and bool(question.strip()),
            f'--questions {path}:{number}: "question" must be a text',
        )
        questions.append(question)
    return questions
