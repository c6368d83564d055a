"""Serve chat completions: each answer is refined until a rule accepts it.

    svr serve --task gsm8k --upstream http://127.0.0.1:8000/v1 --model NAME
    svr serve --task countdown --policy embedded:countdown-tiny

The first command is a proxy in front of any server that speaks the protocol,
such as `vllm serve`; the second runs a policy with the transformers engine.
The extra "serve" has what it needs. Guide: docs/serving.md.
"""

import argparse
import gc
import logging
import signal
from typing import Any, get_args

from msgspec import convert

from svr_lightning.analysis.operating_point import (
    OPERATING_POINT,
    Certificate,
    read_operating_point,
    unsent,
)
from svr_lightning.cli.values import HELP_OF_RULE, json_object, stop_rule
from svr_lightning.clients.chat_model import ChatModel, check_fields
from svr_lightning.clients.connections import check_url, read_access, read_key, version_hint
from svr_lightning.control.backends import Backend, EngineBackend, Upstream
from svr_lightning.control.controller import Controller, Otherwise
from svr_lightning.control.protocol import Content
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.errors import ConfigError, field_error, require
from svr_lightning.recipes.dialogues import FreshTurns, SelfVerifying


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("--task", required=True, help="gsm8k, math, countdown or a class path: wording of prompts")
    where = parser.add_mutually_exclusive_group(required=True).add_argument
    where("--upstream", metavar="URL", help="address of the policy's server, usually ending in /v1")
    where("--policy", help="instead of --upstream: a policy folder, to run here")
    add("--model", help="name of the policy at --upstream, and here (default here: svr)")
    _add_rules(parser.add_mutually_exclusive_group())
    add("--max-turns", type=int, help="T_max (default 10); a request may ask for fewer")
    add("--max-completion-tokens", type=int, help="limit of a turn (default: the task's)")
    add(
        "--otherwise",
        choices=get_args(Otherwise),
        default="answer",
        help="what to do if no turn is accepted (default: answer)",
    )
    add("--escalate", metavar="URL", help="ask a second model once if no turn is accepted")
    add("--escalate-model", metavar="NAME", help="name of the model at --escalate")
    add(
        "--content",
        choices=get_args(Content),
        default="answer",
        help="what a message holds: the answer's text (default), or the turn as the model wrote it",
    )
    add("--log", choices=["requests"], help="print a line per request on standard error")
    add("--host", default="127.0.0.1", help="address to listen on (default: only this machine)")
    add("--port", type=int, default=8080, help="0 chooses a free one (default 8080)")
    add("--key-env", help="environment variable with the key that clients must send")
    add(
        "--max-model-len",
        type=int,
        help="tokens of a prompt with its completion, for --policy (8192); prompts get half",
    )
    add(
        "--chat-template-kwargs",
        metavar="JSON",
        type=json_object,
        default='{"enable_thinking": false}',
        help="for the model's chat template (%(default)s); {} if its server takes none",
    )
    for server in ("upstream", "escalate"):
        _add_server_options(parser, server)
    add(
        "--at-once",
        type=int,
        default=1,
        help="draw this many independent samples at once instead of refining (1)",
    )
    for name, shown in (
        ("--limit", "NAME=NUMBER, such as body=2000000 or connections=100"),
        ("--allow-origin", "a web page that may ask, such as https://example.org"),
    ):
        add(name, action="append", default=[], help=f"{shown}; may be repeated")


def _add_rules(group: Any) -> None:
    """When a turn is accepted."""
    add = group.add_argument
    add("--certificate", metavar="FILE", help="certificate.json of certify: its rule and T_max")
    add(
        "--threshold",
        metavar="SHARE",
        type=float,
        help="confidence that accepts a turn (default 0.85)",
    )
    add("--stop", metavar="RULE", type=stop_rule, help=HELP_OF_RULE)


def _add_server_options(parser: argparse.ArgumentParser, where: str) -> None:
    """How the server at ``--upstream`` or ``--escalate`` is asked."""
    add = parser.add_argument
    add(f"--{where}-key-env", help=f"environment variable with the key for --{where}")
    for name, shown in (
        (
            "fields",
            "renames fields of its requests, or leaves them out: "
            '{"max_tokens": "max_completion_tokens", "temperature": null}',
        ),
        ("headers", '{"api-key": "$NAME"}, with the value of an environment variable'),
        ("query", '{"api-version": "2024-10-21"}; $NAME as for headers'),
    ):
        add(f"--{where}-{name}", metavar="JSON", type=json_object, default="{}", help=shown)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from svr_lightning.control.listening import Listener, bound
    from svr_lightning.control.monitoring import REQUESTS

    if options.log is not None:
        logger = logging.getLogger(REQUESTS)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(logging.StreamHandler())
    with bound(options.host, options.port) as listening:
        server = make_server(options)
        running = Listener(server, log_level="error")
        listening.listen()
        gc.freeze()  # a collection that looks at all that was loaded stops everyone for long
        # uvicorn raises the signal again once it has shut down, which would look like a crash.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, running.handle_exit)
        port = listening.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(describe(server.controller, options))
        print(f"serving {options.model or 'svr'} at http://{host}:{port}/v1", flush=True)
        running.run(sockets=[listening])
    return 0


def describe(controller: Controller, options: argparse.Namespace) -> str:
    """When it stops, what is certified, and what becomes of the rest; on a line each."""
    turns = controller.max_turns
    lines = [f"stops at {controller.rule}; at most {turns} turn{'s' if turns > 1 else ''}"]
    certificate = controller.certificate
    if certificate is None:
        lines.append("no certificate")
    else:
        which = "all answers" if certificate.of_all else "accepted answers alone"
        lines += [
            f"certificate {certificate.id} of {which}:",
            f"  {', '.join(certificate.promises)}",
            *(f"  covers no answer: {reason}" for reason in certificate.unrecorded),
        ]
        if options.policy is None or certificate.weights is None:
            lines.append("  weights are not compared")
    if options.escalate is not None:
        lines.append(f"unsure answers go to {options.escalate_model}")
    return "\n".join(lines)


def make_server(options: argparse.Namespace) -> Any:
    """The server that the options describe."""
    from svr_lightning.control.server import ChatServer, Limits, is_loopback

    try:
        given = dict(pair.partition("=")[::2] for pair in options.limit)
        limits = convert(given, Limits, strict=False)
    except ValueError as error:
        raise ConfigError(f"--limit {field_error(error, 'NAME=NUMBER', Limits)}") from error
    for origin in options.allow_origin:
        require(
            "://" in origin or origin in ("*", "null"),
            f"--allow-origin {origin}: begin with the scheme, such as https://example.org",
        )
    key = read_key(options.key_env, "--key-env")
    require(
        key is not None or is_loopback(options.host),
        f"--host {options.host} can be reached by others; set a key and name it with --key-env",
    )
    controller = make_controller(options)
    stronger = _stronger(options, controller.certificate)
    if options.policy is not None:
        _refuse_options_of(options, "upstream")
        policy: Backend = _engine_backend(options, controller.certificate)
    else:
        require(options.model is not None, "--upstream needs --model NAME")
        require(options.max_model_len is None, "--max-model-len needs --policy")
        policy = _server(
            options,
            "upstream",
            name=options.model,
            chat_template_kwargs=options.chat_template_kwargs,
            logprobs=controller.rule.needs_tokens,
        )
    return ChatServer(
        controller,
        policy,
        model=options.model or "svr",
        stronger=stronger,
        content=options.content,
        limits=limits,
        key=key,
        origins=options.allow_origin,
    )


def make_controller(options: argparse.Namespace) -> Controller:
    """What answers a request that sets nothing itself, with clients of its own."""
    rule, certificate = _rule(options)
    limit = options.max_completion_tokens
    if certificate is not None and limit is None:
        certified = certificate.decoding.get("max_completion_tokens")
        limit = certified if isinstance(certified, int) else None  # several data sets have a list
    turns = certificate.max_turns if certificate else 10
    fresh = certificate is not None and certificate.decoding.get("fresh_turns") is True
    return Controller(
        None,
        options.task,
        rule=rule,
        max_turns=turns if options.max_turns is None else options.max_turns,
        max_completion_tokens=limit,
        otherwise=options.otherwise,
        certificate=certificate,
        at_once=options.at_once,
        dialogue=FreshTurns(SelfVerifying()) if fresh or options.at_once > 1 else SelfVerifying(),
    )


def _rule(options: argparse.Namespace) -> tuple[StopRule, Certificate | None]:
    """The rule of the options, of the certificate, or of the policy's folder; the certificate."""
    found = None
    if options.certificate is not None:
        found = Certificate.read(options.certificate)
        require(
            options.max_turns is None,
            f"--certificate holds for T_max {found.max_turns}, the turns of its recording, alone; "
            "leave out --max-turns, or certify what you want",
        )
    elif options.threshold is not None:
        return Confident(threshold=options.threshold), None
    elif options.stop is not None:
        return options.stop, None
    elif options.policy is not None:
        found = read_operating_point(options.policy)
    if found is None:
        return Confident(), None
    if options.max_turns is not None:
        file = f"{options.policy}/{OPERATING_POINT}"
        print(f"{file}: stops at {found.rule}, and promises nothing for --max-turns")
        return found.rule, None
    drawn = {
        "chat_template_kwargs": options.chat_template_kwargs,
        "model_name": options.model,
        "unsent": unsent(options.upstream_fields),
    }
    other = found.departures(found.rule, found.max_turns, drawn)
    require(not other, f"the certificate promises nothing for {', '.join(other)}")
    return found.rule, found


def _stronger(options: argparse.Namespace, certificate: Certificate | None) -> Upstream | None:
    """The second model."""
    if options.escalate is None:
        _refuse_options_of(options, "escalate")
        return None
    require(options.escalate_model is not None, "--escalate needs --escalate-model NAME")
    require(
        certificate is None or not certificate.of_all,
        "--escalate: the certificate promises something of all answers, and knows nothing of the "
        "second model's; certify --max-pse or --max-wrong-accepted, or leave out --escalate",
    )
    called = "the second model's server"
    return _server(options, "escalate", called, name=options.escalate_model)


def _refuse_options_of(options: argparse.Namespace, where: str) -> None:
    """Refuse what would have no effect, since there is no server at ``--upstream``, say."""
    for name, value in vars(options).items():
        option = name.replace("_", "-")
        require(not name.startswith(f"{where}_") or not value, f"--{option} needs --{where} URL")


def _server(
    options: argparse.Namespace, where: str, called: str = "the model's server", **model: Any
) -> Upstream:
    """The model at ``--upstream`` or ``--escalate``."""
    given = vars(options)
    check_url(
        given[where],
        f"--{where}",
        f"; a query belongs in --{where}-query, and a key in --{where}-key-env or "
        f"--{where}-headers",
    )
    if hint := version_hint(given[where]):
        print(f"--{where} {given[where]}{hint}")
    access = read_access(
        read_key(given[f"{where}_key_env"], f"--{where}-key-env"),
        given[f"{where}_headers"],
        given[f"{where}_query"],
        f"--{where}-{{}}",
    )
    fields = check_fields(given[f"{where}_fields"], f"--{where}-fields")
    chat_model = ChatModel(base_url=given[where], fields=fields, **model)
    return Upstream(chat_model, access=access, name=called)


def _engine_backend(options: argparse.Namespace, certificate: Certificate | None) -> EngineBackend:
    """The policy of ``--policy`` on the transformers engine."""
    require(
        certificate is None or certificate.is_for(options.policy),
        f"{options.policy}: the certificate is for other weights",
    )
    import torch
    from transformers.utils.logging import disable_progress_bar

    from svr_lightning.cli.messages import driver_fault
    from svr_lightning.engines.transformers import TransformersEngine
    from svr_lightning.policy.config import PolicyConfig
    from svr_lightning.policy.policy import Policy

    length = 8192 if options.max_model_len is None else options.max_model_len
    config = PolicyConfig(
        path=options.policy,
        max_prompt_tokens=length // 2,
        max_model_len=length,
        chat_template_kwargs=options.chat_template_kwargs,
    )
    if fault := driver_fault():
        print(f"serving on the CPU: {fault}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    disable_progress_bar()
    return EngineBackend(Policy.load(config, TransformersEngine(), device=device, trains=False))
