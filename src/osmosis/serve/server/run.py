import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from starlette.types import ASGIApp

from osmosis.base.http_server import BoundedHttp, HostGuard, HostNames
from osmosis.base.net import is_loopback
from osmosis.base.processes import signals_handled
from osmosis.engine.load_agent import load_agent
from osmosis.engine.loader import load_object
from osmosis.errors import OsmosisError
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.harbor.backend import HarborBackend
from osmosis.serve.http import generate_api_key
from osmosis.serve.server.app import configure_logs, create_rollout_server
from osmosis.serve.server.queue import ServeLimits
from osmosis.serve.server.rollouts import Backend

DEFAULT_HOST = "0.0.0.0"
DEFAULT_PORT = 9000
RELOAD_VARIABLE = "_OSMOSIS_SERVE"
GRACEFUL_S = 5


class ServeError(OsmosisError):
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
    local: bool = False  # For callers on this machine: without a key, so no other host name is answered
    api_key: str | None = None
    key_note: str = "disabled"
    log_dir: str | None = None
    max_concurrent: int | None = None
    drain_s: float | None = None
    platform_url: str | None = None
    token: str | None = None
    public_host: str | None = None

    @property
    def registers(self) -> bool:
        return bool(self.platform_url and self.token)

    @property
    def limits(self) -> ServeLimits:
        limits = ServeLimits()
        if self.drain_s is None:
            return limits
        delivery_drain_s = min(limits.delivery_drain_s, self.drain_s)
        return replace(limits, drain_s=self.drain_s, delivery_drain_s=delivery_drain_s)


def choose_key(explicit: str | None, *, local: bool) -> tuple[str | None, str]:
    if local:
        if explicit:
            raise ServeError("an API key cannot be used with local mode, which has no authentication")
        return None, "disabled (local)"
    if explicit is not None:
        if not explicit.strip():
            raise ServeError("the API key is empty", hint="omit it to have one generated, or use --local")
        return explicit, "(provided)"
    key = generate_api_key()
    return key, key


def choose_host(explicit: str | None, *, local: bool) -> str:
    if local and explicit is not None and not is_loopback(explicit):
        message = f"local mode has no API key, so it does not listen on {explicit}, which others can reach"
        raise ServeError(message, hint="omit -H, or omit --local and give callers the API key")
    return explicit or ("127.0.0.1" if local else DEFAULT_HOST)


def serve(
    target: object,
    options: ServeOptions,
    *,
    reload: bool = False,
    announce: Callable[[ServeOptions, str], None] | None = None,
    build: Callable[[object, ServeOptions], ASGIApp] | None = None,
    factory: str = "",
    environ: Mapping[str, str] | None = None,
) -> None:
    _check_port(options.host, options.port)
    if options.log_dir is not None:
        try:
            Path(options.log_dir).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            problem = f"cannot write traces to {options.log_dir}: {exc.strerror or exc}"
            raise ServeError(problem, hint="choose another folder with --log") from exc
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
        # uvicorn raises SIGTERM again: a server that was told to stop has not failed.
        with signals_handled(lambda *_: sys.exit(0), signal.SIGTERM):
            run(finish_app((build or partial(build_app, environ=environ))(target, options), options))
        return
    if not options.target:
        hint = "pass 'module:attribute' instead of the object, or: osmosis serve -m module:attribute --reload"
        raise ServeError("reload needs the agent's import path", hint=hint)
    # uvicorn starts the app in a fresh process after every change; the options travel in its environment.
    os.environ[RELOAD_VARIABLE] = json.dumps(asdict(options))
    try:
        run(factory or f"{__name__}:reloaded_app", factory=True, reload=True, reload_dirs=[options.base_dir])
    finally:
        os.environ.pop(RELOAD_VARIABLE, None)


def reloaded_app() -> ASGIApp:
    options = reloaded_options()
    return finish_app(build_app(load_target(options), options), options)


def reloaded_options() -> ServeOptions:
    return ServeOptions(**json.loads(os.environ[RELOAD_VARIABLE]))


def load_target(options: ServeOptions) -> object:
    if ":" in options.target:
        target = load_object(options.target, Path(options.base_dir))
        if isinstance(target, HarborBackend):
            return target
    agent = load_agent(options.target, Path(options.base_dir))
    return agent.loop if agent.loop is not None else agent.backend


def finish_app(app: ASGIApp, options: ServeOptions) -> ASGIApp:
    configure_logs(logging.getLevelName(options.log_level.upper()))
    if options.local:
        return HostGuard(app, names=HostNames(), hint="call it as http://127.0.0.1, or serve it without --local")
    return app


def build_app(target: object, options: ServeOptions, environ: Mapping[str, str] | None = None) -> ASGIApp:
    if isinstance(target, Backend):
        return create_rollout_server(
            target,
            api_key=options.api_key,
            max_concurrent=options.max_concurrent,
            limits=options.limits,
            log_dir=options.log_dir,
            environ=environ,
        )
    if callable(target) and hasattr(target, "router"):
        return target
    hint = "name a RolloutAgentLoop, an AgentWorkflow class, a LocalBackend, a HarborBackend or a FastAPI app"
    raise ServeError(f"{options.target or target!r} cannot be served", hint=hint)


def name_of(target: object) -> str:
    if isinstance(target, LocalBackend):
        return target.workflow.__name__
    return str(getattr(target, "name", None) or getattr(target, "title", None) or type(target).__name__)


def print_panel(options: ServeOptions, name: str) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    lines = [
        f"Agent: {name}",
        f"Address: http://{host}:{options.port}",
        f"API Key: {options.key_note}",
        f"Registration: {options.platform_url if options.registers else 'skipped'}",
    ]
    if options.log_dir:
        lines.append(f"Debug Log: {options.log_dir}")
    Console(highlight=False).print(Panel(Text("\n".join(lines)), title="osmosis serve", border_style="blue"))


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
