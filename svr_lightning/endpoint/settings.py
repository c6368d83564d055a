"""Where the server is and how it is asked: the short forms that the command line knows."""

import argparse
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from svr_lightning.errors import ConfigError

COMMANDS = ("validate", "test", "predict")
"""What can be done through a server."""
ENGINE = "openai"
DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """A server, and how patiently it is asked. It never holds the key itself."""

    base_url: str
    """Up to the version, as in ``http://127.0.0.1:8000/v1``."""
    model_name: str
    """What the server calls the policy."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None takes ``OPENAI_API_KEY`` where it is set."""
    concurrency: int = 64
    """Requests in flight at most."""
    timeout: float = 600.0
    """Seconds that one request may take, waiting in the server's queue included."""
    tries: int = 6
    """How often one request is sent before the run stops."""
    first_delay: float = 1.0
    """Seconds before the second try; each further one waits twice as long."""

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        for name, value, least in (
            ("concurrency", self.concurrency, 1),
            ("timeout", self.timeout, 1),
            ("tries", self.tries, 1),
        ):
            if not value >= least:
                raise ConfigError(f"--{name} {value} must be at least {least}")
        if not self.model_name.strip():
            raise ConfigError("--model-name is empty; give the name that the server lists")

    @property
    def key_name(self) -> str:
        """The environment variable that is read."""
        return self.api_key_env or DEFAULT_KEY

    def api_key(self) -> str | None:
        """The key, read where it is used and kept nowhere else.

        Raises:
            ConfigError: if a variable was named that is not set, or the key is no plain text.
        """
        key = os.environ.get(self.key_name, "").strip()
        if not key and self.api_key_env is not None:
            raise ConfigError(f"--api-key-env {self.api_key_env}: this variable is not set")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"the key in {self.key_name} holds characters that a header cannot; set it anew"
            )
        return key or None

    def public(self) -> dict[str, str | int | float]:
        """What results files quote."""
        return {
            "engine": ENGINE,
            "base_url": self.base_url,
            "model_name": self.model_name,
            "concurrency": self.concurrency,
            "timeout": self.timeout,
        }


def take_options(arguments: list[str]) -> tuple[EndpointSettings | None, list[str]]:
    """Read and remove the server's options from a command line.

    Args:
        arguments: a subcommand and what follows it.

    Returns:
        The settings, None where the command line names no server, and the other arguments.

    Raises:
        ConfigError: for options that do not fit each other.
        argparse.ArgumentError: for a value that is none.
    """
    command, *given = arguments
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--engine")
    parser.add_argument("--base-url")
    parser.add_argument("--model-name")
    parser.add_argument("--api-key-env")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--timeout", type=float)
    options, rest = parser.parse_known_args(given)
    named = {name: value for name, value in vars(options).items() if value is not None}
    if not named:
        return None, arguments
    engine = named.pop("engine", None)
    if engine != ENGINE:
        what = f"--engine {engine}" if engine else f"--{next(iter(named)).replace('_', '-')}"
        raise ConfigError(
            f"{what}: a server is asked with --engine {ENGINE} --base-url URL --model-name NAME; "
            "an engine in this process is named by --model.engine"
        )
    if command not in COMMANDS:
        raise ConfigError(
            f"{command} needs the policy itself; --engine {ENGINE} is for {', '.join(COMMANDS)}"
        )
    for name in ("base_url", "model_name"):
        if name not in named:
            raise ConfigError(f"--engine {ENGINE} needs --{name.replace('_', '-')} too")
    named["base_url"] = named["base_url"].rstrip("/")
    return EndpointSettings(**named), [command, *rest]


def _check_url(url: str) -> None:
    """Refuse what is no plain address. The message must not repeat a password."""
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        complete = False
    if not complete or any(not c.isprintable() or c.isspace() for c in url):
        raise ConfigError("--base-url is no address such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            "--base-url must be an address alone, without user, password or query; a key belongs "
            f"into the environment variable {DEFAULT_KEY}"
        )
    if url.endswith("/completions"):
        raise ConfigError("--base-url ends before /chat/completions, usually in /v1")
