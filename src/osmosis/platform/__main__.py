"""`python -m osmosis.platform serve` or `worker`; `platform.json` in the data folder exists while it answers."""

import argparse
import getpass
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError as BadSettings

from osmosis._version import __version__
from osmosis.base.files import read_object, write_json
from osmosis.base.http_server import BoundedHttp
from osmosis.base.processes import on_stop, start_token
from osmosis.errors import Conflict, OsmosisError, UsageError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.app import create_app
from osmosis.platform.backup.restore import ANNOUNCEMENT, running_in
from osmosis.platform.embedded_worker import Reachability, build_embedded_worker
from osmosis.platform.maintenance.telemetry import LogFile, formatter
from osmosis.platform.settings import WILDCARDS, LogFormat, PlatformSettings
from osmosis.platform.web.session import event_streams
from osmosis.records.base import utc_now
from osmosis.records.config.worker import GateAddress
from osmosis.records.sandbox import LIMITS, SandboxSettings, parse_limit
from osmosis.sandbox import Level, probe

LOG_BYTES = 10 * 1024 * 1024


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m osmosis.platform", description="The osmosis platform.")
    commands = root.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run API, pages, git host and worker in one process")
    add = serve.add_argument
    add("--host", help="address to listen on (127.0.0.1)")
    add("--port", type=int, help="port to listen on (7575)")
    add("--public-url", help="URL under which clients reach it, if not host and port")
    text = "host name that requests may carry, such as osmosis.lan or *.example.com; may be repeated"
    add("--allowed-host", action="append", metavar="NAME", help=text)
    add("--private-servers", action="store_true", help="let rollout servers on private networks register")
    text = "host of git remotes that may be reached although its address is private; may be repeated"
    add("--remote-allow", action="append", metavar="HOST", help=text)
    add("--remote-poll", type=float, help="seconds between looks at repositories elsewhere (300; 0: never)")
    add("--no-worker", action="store_true", help="do not run jobs in this process")
    add("--detached", action="store_true", help="once it is up, log only to the file")
    worker = commands.add_parser("worker", help="run another worker with the same database and data folder")
    worker.add_argument("--platform-url", required=True, help="URL that jobs report to")
    for command in (serve, worker):
        add = command.add_argument
        add("--insecure-http", action="store_true", help="listen beyond this machine without https: tokens can be read")
        add("--data-dir", type=Path, help="data folder")
        add("--database-url", help="SQLAlchemy URL (SQLite in the data folder)")
        add("--require-sandbox", action="store_true", help="fail jobs where rollouts cannot run in a sandbox")
        add("--no-sandbox", action="store_true", help="run rollouts with the rights of the platform's user")
        text = "what rollouts may reach on this machine or in its network; may be repeated"
        add("--sandbox-allow", action="append", default=[], metavar="HOST:PORT", help=text)
        text = f"what a rollout server may use: {', '.join(LIMITS)}; may be repeated"
        add("--sandbox-limit", action="append", default=[], metavar="NAME=VALUE", help=text)
        text = "URL at which rollout servers on other machines reach training jobs of this one; {port} is theirs"
        add("--advertise-url", default="", metavar="URL", help=text)
        text = "where training jobs listen for them (127.0.0.1:0)"
        add("--gate-listen", default="", metavar="HOST:PORT", help=text)
        add("--max-jobs", type=int, help="jobs at once (1)")
        add("--lease", type=float, help="seconds without a heartbeat after which a job is replaced (60)")
        add("--stop-grace", type=float, help="seconds a stopped job gets to finish (20)")
        add("--job-command", type=shlex.split, help="command that runs a job (python -m osmosis.jobs)")
    return root


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    options = {
        "data_dir": args.data_dir.resolve() if args.data_dir else None,
        "database_url": args.database_url,
        "max_jobs": args.max_jobs,
        "lease_s": args.lease,
        "stop_grace_s": args.stop_grace,
        "job_command": tuple(args.job_command) if args.job_command else None,
        "owner_name": _user_name(),
    }
    try:
        options["sandbox"] = _sandbox(args)
        options["gate"] = gate_of(args)
        return _worker(args, options) if args.command == "worker" else _serve(args, options)
    except OsmosisError as error:
        print(f"error: {error.message}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)  # noqa: T201 - a program of its own
        return error.exit_code


def _serve(args: argparse.Namespace, options: dict[str, object]) -> int:
    options |= {"host": args.host, "port": args.port, "public_url": args.public_url}
    options |= {"allowed_hosts": tuple(args.allowed_host) if args.allowed_host else None}
    options |= {"worker": not args.no_worker, "private_servers": args.private_servers}
    options |= {
        "remote_allow": tuple(args.remote_allow) if args.remote_allow else None,
        "remote_poll_s": args.remote_poll,
    }
    settings = PlatformSettings.from_environ(os.environ, **options)
    if not args.insecure_http:
        settings.refuse_open_http()
    listener = listen(settings)
    stderr = _log_to(settings.log_file, settings.log_format)
    config = uvicorn.Config(
        create_app(settings),
        http=BoundedHttp,
        timeout_graceful_shutdown=10,
        lifespan="on",
        log_config=None,
        access_log=False,
    )
    sandbox = "off (--no-sandbox): level 0" if args.no_sandbox else probe().describe
    logging.getLogger("osmosis.platform").info("sandbox of rollouts: %s", sandbox)
    server = AnnouncingServer(config, settings)
    if args.detached:
        # whoever started it reads its output only until it answers, and nobody rotates that
        server.when_answering.append(lambda: logging.getLogger().removeHandler(stderr))
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it is done; this one makes that a plain end
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def gate_of(args: argparse.Namespace) -> GateAddress | None:
    if not args.advertise_url and not args.gate_listen:
        return None
    fields = {"advertise_url": args.advertise_url, "insecure_http": args.insecure_http}
    if args.gate_listen:
        fields["listen"] = args.gate_listen
    try:
        gate = GateAddress.model_validate(fields)
    except BadSettings as problem:
        entry = problem.errors(include_url=False)[0]
        raise UsageError(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}") from None
    gate.refuse()
    return gate


def _sandbox(args: argparse.Namespace) -> SandboxSettings:
    if args.require_sandbox:
        probe().require(Level.NAMESPACES)
    try:
        limits = dict(parse_limit(text) for text in args.sandbox_limit)
        settings = {"required": args.require_sandbox, "off": args.no_sandbox, "allow": args.sandbox_allow}
        return SandboxSettings.model_validate({**settings, **limits})
    except ValueError as problem:
        first = problem.errors()[0] if isinstance(problem, BadSettings) else None
        if first is None:
            raise UsageError(f"--sandbox-limit: {problem}") from None
        name = str(first["loc"][0])
        flag = "--sandbox-allow" if name == "allow" else f"--sandbox-limit {name}"
        raise UsageError(f"{flag}: {first['msg']}") from None


def _worker(args: argparse.Namespace, options: dict[str, object]) -> int:
    settings = PlatformSettings.from_environ(
        os.environ, **options, public_url=args.platform_url, job_url=args.platform_url
    )
    _log_to(settings.log_file.with_name(f"worker-{os.getpid()}.log"), settings.log_format)
    platform = Platform.open(settings)
    worker = build_embedded_worker(platform, reachability=Reachability(settings.job_base_url, settings.lease_s))
    over = threading.Event()
    on_stop(over.set)
    worker.start()
    while not over.wait(1.0):
        pass
    worker.stop()
    platform.db.close()
    return 0


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "local"


def _log_to(path: Path, form: LogFormat) -> logging.Handler:
    path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.mkdir(exist_ok=True)
    file = LogFile(path, maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8")
    stderr = logging.StreamHandler(sys.stderr)
    for handler in (file, stderr):
        handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[file, stderr])
    for chatty in ("alembic", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return stderr


def listen(settings: PlatformSettings) -> socket.socket:
    if settings.host in WILDCARDS and not settings.public_url:
        message = f"listening on {settings.host} needs the URL under which others reach this platform"
        raise ValidationError(message, hint="add --public-url https://HOST, or listen on one address: --host 127.0.0.1")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that say they are TCP; with it, every answer on a kept
    # connection waits for the other side's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise Conflict(message, hint="choose another port with --port, or stop the process that uses it") from error
    return listener


class AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, settings: PlatformSettings) -> None:
        super().__init__(config)
        self._settings = settings
        self.when_answering: list[Callable[[], object]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            settings = self._settings
            if running_in(settings.data_dir) in (None, os.getpid()):
                write_json(
                    settings.data_dir / ANNOUNCEMENT,
                    {
                        "pid": os.getpid(),
                        "host": settings.host,
                        "port": settings.port,
                        "url": settings.url,
                        "version": __version__,
                        "started_at": utc_now().isoformat(),
                        "start_token": start_token(os.getpid()),
                    },
                    indent=2,
                    mode=0o600,
                )
            for action in self.when_answering:
                action()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        data_dir = self._settings.data_dir
        if (
            read_object(data_dir / ANNOUNCEMENT).get("pid") == os.getpid()
        ):  # not that of another process over this folder
            (data_dir / ANNOUNCEMENT).unlink(missing_ok=True)
        if isinstance(self.config.app, FastAPI):
            event_streams(self.config.app).stopping = True  # pages that follow a run would hold the process open
        await super().shutdown(sockets=sockets)


if __name__ == "__main__":
    sys.exit(main())
