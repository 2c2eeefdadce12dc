"""`python -m osmosis.platform serve`: the platform as one process, in the foreground.

Writes `<data dir>/platform.json` once it answers, so that whoever started it finds it, and removes it at the end.
SIGTERM and Ctrl-C end it in order: no new work, requests and the worker finish, the database is closed.
"""

from __future__ import annotations

import argparse
import getpass
import logging
import logging.handlers
import os
import signal
import sys
from pathlib import Path

from osmosis.errors import OsmosisError

from .settings import PlatformSettings

LOG_BYTES = 10 * 1024 * 1024


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m osmosis.platform", description="The osmosis platform.")
    commands = root.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="API, pages, git host and worker")
    serve.add_argument("--host", default=None, help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, default=None, help="port to listen on (7575)")
    serve.add_argument("--public-url", default=None, help="how clients reach it, when not by host and port")
    serve.add_argument("--no-worker", action="store_true", help="run no jobs in this process")
    for command in (serve,):
        command.add_argument("--data-dir", type=Path, default=None, help="where everything is stored")
        command.add_argument("--database-url", default=None, help="SQLAlchemy URL (SQLite in the data folder)")
        command.add_argument("--max-jobs", type=int, default=None, help="jobs at once (1)")
    return root


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    given = {
        "data_dir": args.data_dir.resolve() if args.data_dir else None,
        "database_url": args.database_url,
        "max_jobs": args.max_jobs,
        "owner_name": _user_name(),
    }
    try:
        return _serve(args, given)
    except OsmosisError as error:
        print(f"error: {error.message}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)  # noqa: T201
        return error.exit_code


def _serve(args: argparse.Namespace, given: dict[str, object]) -> int:
    import uvicorn

    from .announce import AnnouncingServer
    from .app import create_app

    given |= {"host": args.host, "port": args.port, "public_url": args.public_url}
    given["worker"] = not args.no_worker
    settings = PlatformSettings.from_environ(os.environ, **given)
    _log_to(settings.log_file)
    app = create_app(settings)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_config=None, timeout_graceful_shutdown=10, access_log=False
    )
    server = AnnouncingServer(config, settings)
    signal.signal(signal.SIGTERM, server.handle_exit)
    server.run()
    return 0 if server.started else 1


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "local"


def _log_to(path: Path) -> None:
    path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.mkdir(exist_ok=True)
    handlers = [
        logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8"),
        logging.StreamHandler(sys.stderr),
    ]
    logging.basicConfig(level=logging.INFO, handlers=handlers, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("alembic", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
