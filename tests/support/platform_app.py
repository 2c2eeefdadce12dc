"""A whole platform in this process, for tests: real database, real HTTP on a free loopback port.

No worker and no job: what runs do is written into the database by the test, or by a job of its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the platform's libraries are loaded when one is started
    from fastapi import FastAPI

    from osmosis.platform import Platform

from osmosis.base.http_server import BoundedHttp
from osmosis.platform.app import create_app
from osmosis.platform.auth import tokens, users
from osmosis.platform.git import repositories
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import service as workspaces

from .command_line import CommandRun, login_environ, run_command
from .platform_process import lay_database

START_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RunningPlatform:
    """A platform that answers at `url`, and a workspace in it."""

    url: str
    token: str
    """Of the owner, who belongs to the workspace."""
    workspace_id: str
    workspace: str
    parts: Platform
    app: FastAPI
    """The ASGI application."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "X-Osmosis-Workspace": self.workspace}

    @property
    def environ(self) -> dict[str, str]:
        return login_environ(self.url, self.token)

    def run(self, *words: str, cwd: Path, **environ: str) -> CommandRun:
        """A command of the owner, in the workspace, with `--json`."""
        place = ("--workspace", self.workspace, "--json")
        return run_command(*words, *place, cwd=cwd, environ={**self.environ, **environ})

    @property
    def git_url(self) -> str:
        """The workspace's hosted repository, with the token in it."""
        host = self.url.partition("://")[2]
        return f"http://osmosis:{self.token}@{host}/git/local/{self.workspace}.git"


@contextmanager
def running_platform(
    data_dir: Path, *, workspace: str = "demo", hosted: bool = True, environ: Mapping[str, str] | None = None
) -> Iterator[RunningPlatform]:
    """Start a platform over `data_dir`, make a workspace (with a hosted repository unless told otherwise), stop it.

    `environ`: more variables that it is started with.
    """
    import uvicorn

    if "OSMOSIS_DATABASE_URL" not in (environ or {}):
        lay_database(data_dir)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    variables = {"PATH": os.environ["PATH"], **(environ or {})}
    settings = PlatformSettings.from_environ(variables, data_dir=data_dir, port=listener.getsockname()[1], worker=False)
    app = create_app(settings)
    parts = app.state.platform
    with parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        token = tokens.issue(session, owner, "test").text
        row = workspaces.create(session, owner, workspace)
        if hosted and repositories.find_for_workspace(session, row.id) is None:
            repositories.add_internal(session, settings, row, owner.handle)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedHttp, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise RuntimeError("the platform did not start")
            time.sleep(0.01)
        yield RunningPlatform(settings.url, token, row.id, workspace, parts, app)
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT_S)
        listener.close()
