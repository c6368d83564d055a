"""Which training a checkpoint is of: the settings that decide its draws and its rewards.

A resumed run with another value of one of them equals neither the run that was interrupted nor a
new one. Rates, lengths, intervals, folders and hardware are not among them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

_RENDERING = ("chat_template_kwargs", "max_prompt_tokens", "max_model_len")
_REFERENCE = ("mix", "every")


def identity_of(module: Any, data: Any) -> dict[str, str]:
    """The settings of an ``SVRModule`` and its data by their dotted names, as text."""
    (problems,) = data.problems("train")
    seeds = dict.fromkeys([module.seed, data.seed])  # the command line has one for both
    sampling = asdict(module.sampling.decoding())
    return {
        "seed_everything": ", ".join(map(str, seeds)),
        "data.train": f"{len(problems)} problems with sha256 {data.training_digest[:16]}",
        "model.resample": module.resample,
        **{f"model.policy.{name}": str(getattr(module.policy_config, name)) for name in _RENDERING},
        **{f"model.reference.{k}": str(getattr(module.reference_config, k)) for k in _REFERENCE},
        **{f"model.sampling.{name}": str(value) for name, value in sampling.items()},
        **dict(_settings("model.recipe", module.recipe)),
    }


def warn_of_changes(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """One warning for each setting that differs between a checkpoint and the run that resumes it.

    A setting that only one of them has belongs to another recipe, which is named, or to another
    version.
    """
    for name, value in now.items():
        before = saved.get(name, value)
        if before != value:
            rank_zero_warn(
                f"{name}={value}, but the checkpoint was saved with {before}: the resumed run will "
                "not equal an uninterrupted one; to continue the same run, give it as it was"
            )


def _settings(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value as text, after its class if it has fields, each of which follows."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _settings(f"{name}.{field.name}", getattr(value, field.name))
    plain = value is None or isinstance(value, str | int | float | tuple | list | dict)
    named = value if hasattr(value, "__qualname__") else type(value)  # a function, or a class's
    yield name, str(value) if plain else f"{named.__module__}.{named.__qualname__}"
