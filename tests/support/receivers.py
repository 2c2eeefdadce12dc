"""A hook and a mail server on loopback that keep the notices they get."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.posts.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(received.answers.pop(0) if received.answers else 200)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        received.url = f"http://127.0.0.1:{port}/hooks/s3cret"
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
