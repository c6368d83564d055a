"""Values of options: what argparse makes of their text."""

import argparse
import json
from typing import Any

from msgspec import convert

from svr_lightning.core.stopping import RULES, StopRule, rule_from_config
from svr_lightning.errors import one_line
from svr_lightning.row_files import distinct_keys

HELP_OF_RULE = 'another rule: NAME, or {"class_path": NAME, "init_args": {...}}'


def json_object(text: str) -> dict[str, Any]:
    """The value of an option; argparse names the option of what is none."""
    try:
        return convert(json.loads(text, object_pairs_hook=distinct_keys), dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object ({one_line(error)})") from error


def stop_rule(text: str) -> StopRule:
    """A stopping rule of the package by its name, or as a JSON object with its settings."""
    stop = json_object(text) if text.startswith("{") else {"class_path": text}
    try:
        return rule_from_config({"stop": stop})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; known: {', '.join(RULES)}") from error
