import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from starlette.types import ASGIApp

from osmosis.base.paths import DEFAULT_PLATFORM_URL
from osmosis.compat.console import Console
from osmosis.compat.registration import Registration
from osmosis.compat.server import LoginCredentials, LoopServerSettings, build_loop_server
from osmosis.compat.settings import RolloutSettings, get_settings
from osmosis.compat.validator import ValidationResult, validate_agent_loop
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.serve.server import run


def serve_agent_loop(
    agent_loop: RolloutAgentLoop | str,
    *,
    host: str | None = None,
    port: int = run.DEFAULT_PORT,
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
    """Serve an agent loop until it is told to stop, registered with the platform of `OSMOSIS_PLATFORM_URL` as the
    person of `credentials` or of `OSMOSIS_TOKEN`, unless `skip_register` or `local_debug` (no key, loopback alone).
    With `reload`, pass `"module:attribute"` or a module's attribute. Raises `ServeError`,
    `AgentLoopValidationError`."""
    variables = os.environ if environ is None else environ
    key, note = run.choose_key(api_key, local=local_debug)
    options = run.ServeOptions(
        target=agent_loop if isinstance(agent_loop, str) else _find_import_path(agent_loop) or "",
        host=run.choose_host(host, local=local_debug),
        port=port,
        log_level=log_level,
        local=local_debug,
        api_key=key,
        key_note=note,
        log_dir=os.fspath(debug_dir) if debug_dir is not None else None,
    )
    if not (skip_register or local_debug):
        token = getattr(credentials, "access_token", None) or variables.get("OSMOSIS_TOKEN")
        if not token:
            hint = "osmosis login and osmosis serve -m module:attribute, or skip_register=True"
            raise run.ServeError("not logged in, so the server cannot be registered with a platform", hint=hint)
        url = variables.get("OSMOSIS_PLATFORM_URL", DEFAULT_PLATFORM_URL)
        options = replace(options, token=token, platform_url=url, public_host=variables.get("OSMOSIS_PUBLIC_HOST"))
    loop = run.load_target(options) if isinstance(agent_loop, str) else agent_loop
    if validate:
        validate_and_report(loop).raise_if_invalid()

    serve_target(loop, options, reload=reload, settings=settings, environ=environ)


def serve_target(
    target: object,
    options: run.ServeOptions,
    *,
    reload: bool = False,
    announce: Callable[[run.ServeOptions, str], None] | None = None,
    settings: RolloutSettings | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    if not isinstance(target, RolloutAgentLoop):
        run.serve(target, options, reload=reload, announce=announce, environ=environ)
        return

    def build(_: object, options: run.ServeOptions) -> ASGIApp:
        return build_loop_app(target, options, settings=settings, environ=environ)

    run.serve(target, options, reload=reload, announce=announce, build=build, factory=f"{__name__}:reloaded_loop_app")


def reloaded_loop_app() -> ASGIApp:
    options = run.reloaded_options()
    loop = run.load_target(options)
    if not isinstance(loop, RolloutAgentLoop):
        return run.reloaded_app()
    return run.finish_app(build_loop_app(loop, options), options)


def build_loop_app(
    loop: RolloutAgentLoop,
    options: run.ServeOptions,
    *,
    settings: RolloutSettings | None = None,
    environ: Mapping[str, str] | None = None,
) -> ASGIApp:
    settings = settings or get_settings()
    registration = None
    if options.platform_url and options.token:
        registration = Registration(
            platform_url=options.platform_url,
            token=options.token,
            host=options.host,
            port=options.port,
            agent_name=loop.name,
            api_key=options.api_key,
            public_host=options.public_host,
        )
    server = settings.server
    return build_loop_server(
        loop,
        LoopServerSettings(
            max_concurrent=options.max_concurrent,
            settings=settings,
            api_key=options.api_key,
            debug_dir=options.log_dir,
            limits=replace(
                options.limits, rollout_timeout_s=server.request_timeout_seconds, keep_s=server.record_ttl_seconds
            ),
            registration=registration,
            environ=os.environ if environ is None else environ,
        ),
    )


def validate_and_report(loop: object, *, verbose: bool = False) -> ValidationResult:
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


def _find_import_path(loop: RolloutAgentLoop) -> str | None:
    module = sys.modules.get(type(loop).__module__)
    if module is None or module.__name__ == "__main__":
        return None
    return next((f"{module.__name__}:{name}" for name, value in vars(module).items() if value is loop), None)
