from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from osmosis.cli.agents import find_agent
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.connect import login_of, usable
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.output import Mode
from osmosis.compat.validator import validate_agent_loop
from osmosis.engine.load_agent import load_agent
from osmosis.engine.loader import load_object
from osmosis.errors import AuthRequired, ValidationError

if TYPE_CHECKING:
    from osmosis.serve.server.run import ServeOptions

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


@dataclass(frozen=True)
class ServeFlags:
    name: Annotated[
        str | None,
        Argument(help="A rollout of the workspace, or module:attribute.", autocompletion=completion.rollouts),
    ] = None
    module: Annotated[str | None, Option("--module", "-m", "--agent", help="The agent: module:attribute.")] = None
    port: Annotated[int, Option("--port", "-p", min=1, max=65535, help="Port to listen on.")] = 9000
    host: Annotated[str | None, Option("--host", "-H", help="Address [default: 0.0.0.0; --local: 127.0.0.1]")] = None
    no_validate: Annotated[bool, Option(help="Skip the check of the agent.", hidden=True)] = False
    reload: Annotated[bool, Option(help="Restart when a file changes.")] = False
    log_level: Annotated[LogLevel, Option(help="How much the server logs.", hidden=True)] = "info"
    skip_register: Annotated[bool, Option(help="Do not register; callers still need the API key.")] = False
    local: Annotated[bool, Option("--local", "--local-debug", help="No registration, no API key.")] = False
    api_key: Annotated[str | None, Option(help="API key that callers must send [default: a generated one]")] = None
    log: Annotated[Path | None, Option(help="Write one trace per rollout to this folder.")] = None
    drain: Annotated[float | None, Option(min=0, help="Seconds for rollouts on shutdown [30].", hidden=True)] = None
    max_concurrent: Annotated[int | None, Option(min=1, help="Most rollouts at once.", hidden=True)] = None


@takes(ServeFlags)
def serve(flags: ServeFlags) -> None:
    """Serve an agent over HTTP.

    Example:
        osmosis serve multiply
        osmosis serve -m server:agent_loop --local
        osmosis serve -m server:agent_loop -p 9001 --log ./traces
    """
    ctx = current()
    # They bring the web framework, which no help needs.
    from osmosis.compat.run import serve_target
    from osmosis.serve.server import run

    key, note = run.choose_key(flags.api_key, local=flags.local)
    host = run.choose_host(flags.host, local=flags.local)
    ref = find_agent(ctx, flags.name, flags.module)
    module = ref.module or ref.label
    target = _load(ref.base_dir, module)
    is_loop = hasattr(target, "get_tools")
    if hasattr(target, "router"):
        if flags.api_key or flags.log or flags.max_concurrent is not None:
            message = f"{module} is a complete app: --api-key, --log and --max-concurrent do not apply to it"
            hint = "name the agent instead, or pass api_key=, log_dir= and max_concurrent= where the app is made"
            raise ValidationError(message, hint=hint)
        key, note = None, "set by the app"
    options = run.ServeOptions(
        target=module,
        base_dir=str(ref.base_dir),
        host=host,
        port=flags.port,
        log_level=flags.log_level,
        local=flags.local,
        api_key=key,
        key_note=note,
        log_dir=str(ctx.path(flags.log)) if flags.log else None,
        max_concurrent=flags.max_concurrent,
        drain_s=flags.drain,
        **(_registration(ctx) if is_loop and not (flags.skip_register or flags.local) else {}),
    )
    if is_loop and not flags.no_validate:
        result = validate_agent_loop(target)
        result.raise_if_invalid()
        ctx.output.say(
            f"agent {result.agent_name} is valid, {result.tool_count} {'tool' if result.tool_count == 1 else 'tools'}"
        )
        for warning in result.warnings:
            ctx.output.warn(warning.code, str(warning))
    serve_target(
        target, options, reload=flags.reload, environ=ctx.environ, announce=partial(_announce, ctx, run.print_panel)
    )


def _load(base_dir: Path, module: str) -> object:
    if ":" in module:
        target = load_object(module, base_dir)
        if hasattr(target, "router"):  # an app of the person's own: served as it is
            return target
    agent = load_agent(module, base_dir)
    return agent.loop if agent.loop is not None else agent.backend


def _registration(ctx: AppContext) -> dict[str, str | None]:
    url = ctx.platform_url
    try:
        login = usable(login_of(ctx), url)
    except AuthRequired as exc:
        message = f"{exc.message}; the server registers there"
        raise AuthRequired(message, hint="osmosis login, or add --skip-register") from exc
    return {"platform_url": url, "token": login.token, "public_host": ctx.environ.get("OSMOSIS_PUBLIC_HOST")}


def _announce(
    ctx: AppContext, print_panel: "Callable[[ServeOptions, str], None]", options: "ServeOptions", name: str
) -> None:
    if ctx.mode is Mode.RICH:
        print_panel(options, name)
        return
    row = {
        "agent": name,
        "host": options.host,
        "port": options.port,
        "api_key": options.key_note if options.api_key and options.key_note == options.api_key else None,
        "registers_with": options.platform_url if options.registers else None,
        "log_dir": options.log_dir,
    }
    ctx.output.stream(row, f"serving {name} on {options.host}:{options.port}, API key: {options.key_note}")
