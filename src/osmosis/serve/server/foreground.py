"""Serves what a person names, in the foreground: checks it, chooses the API key, registers it with a platform when
asked, runs uvicorn until a signal, reloads on changes. Prints its panel and nothing else; the public address is looked
up only for a registration.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from osmosis.base.bounded_http import BoundedHttp
from osmosis.base.collector import calm_collector
from osmosis.base.host_guard import HostGuard, HostNames
from osmosis.base.net import is_loopback
from osmosis.base.paths import DEFAULT_PLATFORM_URL
from osmosis.engine.agent import load_agent
from osmosis.engine.loader import load_object
from osmosis.errors import OsmosisError
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.harbor.backend import HarborBackend

from .app import configure_logs, create_rollout_server
from .auth import generate_api_key
from .console import Console
from .queue import ServeLimits
from .registration import Registration
from .rollout_settings import RolloutSettings, get_settings
from .v02 import LoginCredentials, create_app
from .v03 import Backend
from .validator import ValidationResult, validate_agent_loop

DEFAULT_HOST = "0.0.0.0"
LOCAL_HOST = "127.0.0.1"
DEFAULT_PORT = 9000
RELOAD_VARIABLE = "_OSMOSIS_SERVE"
GRACEFUL_S = 5
"""How long uvicorn waits for open requests, after the server itself has drained."""


class ServeError(OsmosisError):
    """The server cannot be started as asked."""

    code = "VALIDATION"
    http_status = 400


@dataclass(frozen=True)
class ServeOptions:
    """How to serve. `target` is `module:attribute`; needed to reload, else for display only."""

    target: str = ""
    base_dir: str = "."
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    log_level: str = "info"
    local: bool = False
    """For callers on this machine: without a key, so no other host name is answered."""
    api_key: str | None = None
    key_note: str = "disabled"
    """What the panel says about the key: the key when it was generated, `(provided)`, `disabled`."""
    log_dir: str | None = None
    max_concurrent: int | None = None
    drain_s: float | None = None
    """On shutdown: seconds for running rollouts to finish; None = the server's own default."""
    platform_url: str | None = None
    """With `token`: register there."""
    token: str | None = None
    public_host: str | None = None

    @property
    def registers(self) -> bool:
        return bool(self.platform_url and self.token)


def serve_agent_loop(
    agent_loop: RolloutAgentLoop | str,
    *,
    host: str | None = None,
    port: int = DEFAULT_PORT,
    validate: bool = True,
    log_level: str = "info",
    reload: bool = False,
    settings: RolloutSettings | None = None,
    skip_register: bool = False,
    api_key: str | None = None,
    local_debug: bool = False,
    debug_dir: str | os.PathLike[str] | None = None,
    credentials: LoginCredentials | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Serves an agent loop until it is told to stop.

    Unless `skip_register` or `local_debug`, it is registered with the platform at `OSMOSIS_PLATFORM_URL` as the
    person of `credentials` (anything with `access_token`) or of `OSMOSIS_TOKEN`. `local_debug` also turns the key
    off, and then only loopback addresses are listened on. With `reload`, pass `"module:attribute"` or a loop that is
    a module's attribute. `ServeError` when it cannot be served like that, `AgentLoopValidationError` when the loop is
    not valid.
    """
    environ = os.environ if environ is None else environ
    key, note = choose_key(api_key, local=local_debug)
    options = ServeOptions(
        target=agent_loop if isinstance(agent_loop, str) else _import_string(agent_loop) or "",
        host=choose_host(host, local=local_debug),
        port=port,
        log_level=log_level,
        local=local_debug,
        api_key=key,
        key_note=note,
        log_dir=os.fspath(debug_dir) if debug_dir is not None else None,
    )
    if not (skip_register or local_debug):
        token = getattr(credentials, "access_token", None) or environ.get("OSMOSIS_TOKEN")
        if not token:
            raise ServeError(
                "not logged in, so the server cannot be registered with a platform",
                hint="osmosis login and osmosis serve -m module:attribute, or skip_register=True",
            )
        url = environ.get("OSMOSIS_PLATFORM_URL", DEFAULT_PLATFORM_URL)
        options = replace(options, token=token, platform_url=url, public_host=environ.get("OSMOSIS_PUBLIC_HOST"))
    loaded = _load(options) if isinstance(agent_loop, str) else agent_loop
    if validate:
        validate_and_report(loaded).raise_if_invalid()
    serve(loaded, options, reload=reload, settings=settings, environ=environ)


def choose_key(given: str | None, *, local: bool) -> tuple[str | None, str]:
    """The server's key and what to say about it."""
    if local:
        if given:
            raise ServeError("an API key cannot be used with local mode, which has no authentication")
        return None, "disabled (local)"
    if given is not None:
        if not given.strip():
            raise ServeError("the API key is empty", hint="omit it to have one generated, or use --local")
        return given, "(provided)"
    key = generate_api_key()
    return key, key


def choose_host(given: str | None, *, local: bool) -> str:
    """The address to listen on: in local mode, which has no key, one that only this machine reaches."""
    if local and given is not None and not is_loopback(given):
        raise ServeError(
            f"local mode has no API key, so it does not listen on {given}, which others can reach",
            hint="omit -H, or omit --local and give callers the API key",
        )
    return given or (LOCAL_HOST if local else DEFAULT_HOST)


def validate_and_report(loop: object, *, verbose: bool = False) -> ValidationResult:
    """Checks an agent loop and prints the findings: to stdout when it may be served, else to stderr."""
    result = validate_agent_loop(loop)
    console = Console(file=None if result.valid else sys.stderr)
    if result.valid:
        tools = f"{result.tool_count} tool{'' if result.tool_count == 1 else 's'}"
        warnings = f", {len(result.warnings)} warnings" if result.warnings else ""
        console.print(f"agent {result.agent_name} is valid: {tools}{warnings}")
    else:
        console.print(f"agent {result.agent_name or type(loop).__name__} is not valid:")
        for error in result.errors:
            console.print(f"  {error}")
    if result.warnings and (verbose or not result.valid):
        for warning in result.warnings:
            console.print(f"  warning: {warning}")
    return result


def serve(
    target: object,
    options: ServeOptions,
    *,
    reload: bool = False,
    settings: RolloutSettings | None = None,
    environ: Mapping[str, str] | None = None,
    announce: Callable[[ServeOptions, str], None] | None = None,
) -> None:
    """Runs uvicorn on an agent loop, a backend or an ASGI app until a signal ends it."""
    import uvicorn

    _check_port(options.host, options.port)
    _check_folder(options.log_dir)
    (announce or print_panel)(options, name_of(target))
    run = partial(
        uvicorn.run,
        host=options.host,
        port=options.port,
        log_level=options.log_level,
        http=BoundedHttp,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    if not reload:
        with _leaving_on_sigterm():
            run(app_of(target, options, settings=settings, environ=environ))
        return
    if not options.target:
        raise ServeError(
            "reload needs the agent's import path",
            hint="pass 'module:attribute' instead of the object, or: osmosis serve -m module:attribute --reload",
        )
    # uvicorn starts the app in a fresh process after every change; the options travel in its environment.
    os.environ[RELOAD_VARIABLE] = json.dumps(asdict(options))
    try:
        factory = f"{__name__}:reloaded_app"
        run(factory, factory=True, reload=True, reload_dirs=[options.base_dir])
    finally:
        os.environ.pop(RELOAD_VARIABLE, None)


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more. A server that was told to stop, and did, has not failed."""

    def leave(*_: object) -> None:
        raise SystemExit(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def reloaded_app() -> ASGIApp:
    """The app of one reload, made in the process that serves it."""
    options = ServeOptions(**json.loads(os.environ[RELOAD_VARIABLE]))
    return app_of(_load(options), options)


def app_of(
    target: object,
    options: ServeOptions,
    *,
    settings: RolloutSettings | None = None,
    environ: Mapping[str, str] | None = None,
) -> ASGIApp:
    """The ASGI app that serves `target` with these options."""
    configure_logs(logging.getLevelName(options.log_level.upper()))
    calm_collector()
    app = _app_of(target, options, settings, environ)
    if options.local:
        app = HostGuard(app, names=HostNames(), hint="call it as http://127.0.0.1, or serve it without --local")
    return app


def _app_of(
    target: object, options: ServeOptions, settings: RolloutSettings | None, environ: Mapping[str, str] | None
) -> ASGIApp:
    if isinstance(target, RolloutAgentLoop):
        known = settings or get_settings()
        limits = replace(
            _limits(options),
            rollout_timeout_s=known.server.request_timeout_seconds,
            keep_s=known.server.record_ttl_seconds,
        )
        registration = None
        if options.platform_url and options.token:
            registration = Registration(
                platform_url=options.platform_url,
                token=options.token,
                host=options.host,
                port=options.port,
                agent_name=target.name,
                api_key=options.api_key,
                public_host=options.public_host,
            )
        return create_app(
            target,
            options.max_concurrent,
            settings=known,
            limits=limits,
            api_key=options.api_key,
            debug_dir=options.log_dir,
            registration=registration,
            environ=environ,
        )
    if isinstance(target, Backend):
        return create_rollout_server(
            target,
            api_key=options.api_key,
            max_concurrent=options.max_concurrent,
            limits=_limits(options),
            log_dir=options.log_dir,
            environ=environ,
        )
    if callable(target) and hasattr(target, "router"):
        return target
    raise ServeError(
        f"{options.target or target!r} cannot be served",
        hint="name a RolloutAgentLoop, an AgentWorkflow class, a LocalBackend, a HarborBackend or a FastAPI app",
    )


def _limits(options: ServeOptions) -> ServeLimits:
    limits = ServeLimits()
    if options.drain_s is None:
        return limits
    return replace(limits, drain_s=options.drain_s, delivery_drain_s=min(limits.delivery_drain_s, options.drain_s))


def name_of(target: object) -> str:
    if isinstance(target, LocalBackend):
        return target.workflow.__name__
    return str(getattr(target, "name", None) or getattr(target, "title", None) or type(target).__name__)


def print_panel(options: ServeOptions, name: str) -> None:
    """What a person sees before the server's log begins."""
    shown = f"[{options.host}]" if ":" in options.host else options.host
    lines = [f"Agent: {name}", f"Address: http://{shown}:{options.port}", f"API Key: {options.key_note}"]
    lines.append(f"Registration: {options.platform_url}" if options.registers else "Registration: skipped")
    if options.log_dir:
        lines.append(f"Debug Log: {options.log_dir}")
    Console().panel("osmosis serve", "\n".join(lines))


def _load(options: ServeOptions) -> object:
    if ":" in options.target:
        found = load_object(options.target, Path(options.base_dir))
        if isinstance(found, HarborBackend):
            return found
    agent = load_agent(options.target, Path(options.base_dir))
    return agent.loop if agent.loop is not None else agent.backend


def _import_string(loop: RolloutAgentLoop) -> str | None:
    """`module:attribute` of an object that is a module's attribute; None for one made in a script."""
    module = sys.modules.get(type(loop).__module__)
    if module is None or module.__name__ == "__main__":
        return None
    return next((f"{module.__name__}:{name}" for name, value in vars(module).items() if value is loop), None)


def _check_folder(log_dir: str | None) -> None:
    if log_dir is None:
        return
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ServeError(
            f"cannot write traces to {log_dir}: {exc.strerror or exc}", hint="choose another folder with --log"
        ) from exc


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise ServeError(
                f"cannot listen on {host}:{port}: {exc.strerror or exc}", hint=f"choose another port: --port {port + 1}"
            ) from exc
