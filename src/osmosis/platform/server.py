"""The server process: its socket, and `<data dir>/platform.json`, which exists exactly while the platform answers.
`start_token`, the process's start time, tells it from a later process with the same id."""

import os
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from osmosis._version import __version__
from osmosis.base.files import read_object, write_json
from osmosis.base.processes import start_token
from osmosis.errors import Conflict, ValidationError
from osmosis.platform.backup.restore import ANNOUNCEMENT, running_in
from osmosis.platform.settings import WILDCARDS, PlatformSettings
from osmosis.platform.web.session import event_streams
from osmosis.records.base import utc_now


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
