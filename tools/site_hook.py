"""A hook of mkdocs: equations become MathML, the API page is generated, and llms.txt is served."""

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from svr_lightning import _HOME, __all__

_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What pymdownx.arithmatex, with its option generic, makes of ``$...$`` and ``$$...$$``."""
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>(~?)([\w.]+)</code>")
"""What Markdown makes of a reference in a docstring."""
_OPTION = re.compile(r"(?<=[ >])--[a-z][\w.+-]*")
"""An option of a command, within which no line breaks."""
_API = """# Python API

Everything here is imported from the package root: `import svr_lightning as svr`. What trains
imports torch when it is first used; the rest needs none.
"""
_IN_ORDER = {
    "Ask a model, and stop when it is sure": "Controller Result Certificate",
    "Prompts, answers and self-checks": """get_task Task Problem first_turn_messages
        refinement_messages parse_self_check self_check_format_score SelfCheck Verdict should_stop
        get_grader""",
    "Train": """SVRTrainer SVRDataModule DataSource SVRModule SVR PolicyConfig OptimizerConfig
        LossSpec""",
    "Rewards and credit": """ScoredTurn RewardWeights turn_rewards trajectory_return TurnReward
        Reward turn_advantages calibration_rewards verification_rewards""",
    "A training loop of your own": """Policy TransformersEngine Decoding Renderer collect_rollout
        micro_batches policy_update_loss""",
}
"""Every public name, in the order in which a user meets them."""


def on_files(files: Files, config: Any) -> Files:
    """The pages of ``docs``, and one of every public name with its signature and docstring."""
    parts = [_API]
    shown = []
    for heading, names in _IN_ORDER.items():
        parts.append(f"## {heading}\n")
        for name in names.split():
            shown.append(name)
            inherited = str(name == "Controller").lower()
            options = f"    options: {{inherited_members: {inherited}}}"
            parts.append(f"::: svr_lightning.{_HOME[name]}.{name}\n{options}\n")
    missing = {*__all__}.symmetric_difference(shown)
    if missing:
        raise PluginError(f"tools/site_hook.py: give a place on the API page to {missing}")
    files.append(File.generated(config, "api.md", content="\n".join(parts)))
    return files


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """The page with its equations and the references of its docstrings converted.

    Links to files of the repository lead to it where it is published, or else to the checkout.
    """
    hosted = config["repo_url"]
    root = f"{hosted}/blob/main" if hosted else os.path.relpath(".", config["site_dir"])
    html = html.replace('href="../', f'href="{root}/')
    html = _OPTION.sub(r'<span class="option">\g<0></span>', html)
    return _ROLE.sub(_reference, _EQUATION.sub(_mathml, html))


def on_post_build(config: Any) -> None:
    """Write llms.txt, whose links lead to the repository's pages, with those of the site."""
    text = Path("llms.txt").read_text(encoding="utf-8")
    served = re.sub(r"\]\(docs/(\w+)\.md", r"](\1.html", text)
    Path(config["site_dir"], "llms.txt").write_text(served, encoding="utf-8")


def _mathml(found: re.Match[str]) -> str:
    block = found[1] == "div"
    return convert(unescape(found[2]).strip(), display="block" if block else "inline")


def _reference(found: re.Match[str]) -> str:
    """A name in code, which leads to its place on the API page if it is public."""
    short = found[2].rpartition(".")[2]
    code = f"<code>{short if found[1] else found[2]}</code>"
    if short not in _HOME:
        return code
    return f'<a href="#svr_lightning.{_HOME[short]}.{short}">{code}</a>'
