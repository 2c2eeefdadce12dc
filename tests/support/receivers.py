"""Servers on loopback in threads that answer as told and keep what they get: any site, a hook, a mail server."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    url: str = ""
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers in lower case, body."""
    answers: list[int] = field(default_factory=list)
    """Statuses of the next answers; then 200."""
    mails: list[str] = field(default_factory=list)


@dataclass
class Asked:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names are compared without their case."""
    body: bytes


Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""


@contextmanager
def site(answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server that answers every request with what `answer` makes of it."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = answer(Asked(self.command, self.path, self.headers, body))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with _serving(server) as port:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hook() -> Iterator[Received]:
    received = Received()

    def take(asked: Asked) -> Answer:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        received.posts.append((asked.path, headers, asked.body))
        return received.answers.pop(0) if received.answers else 200, {"Location": "http://127.0.0.1:1/elsewhere"}, b""

    with site(take) as url:
        received.url = f"{url}/hooks/s3cret"
        yield received


@contextmanager
def mail_server() -> Iterator[Received]:
    """Speaks enough SMTP to take a mail from a user with a password."""
    received = Received()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.split()[0].upper()
                if word == b"EHLO":
                    self.wfile.write(b"250-here\r\n250 AUTH PLAIN\r\n")
                elif word == b"AUTH":
                    self.wfile.write(b"235 welcome\r\n")
                elif word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    received.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                    self.wfile.write(b"250 taken\r\n")
                elif word == b"QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                else:
                    self.wfile.write(b"250 ok\r\n")

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        received.url = f"smtp://osmosis%40example.com:p4ss@127.0.0.1:{port}"
        yield received
