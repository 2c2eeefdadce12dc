"""The server of `osmosis view`: the viewer's pages over the journals of this machine, for whoever started it.

Listens on this machine alone. The link that is printed holds a token that works once and leaves a cookie; requests must
name this machine as their host and come from no other site. What a person writes (labels, tags, notes) is kept beside a
journal; nothing that it serves changes a rollout.
"""

from __future__ import annotations

import hmac
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlsplit

import uvicorn
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis.base.host_guard import HostGuard, HostNames
from osmosis.errors import Conflict, Forbidden, NotFound, OsmosisError, ValidationError
from osmosis.records.rollout import Rollout
from osmosis.viewer import site
from osmosis.viewer.annotating import after, annotation_of
from osmosis.viewer.asked import Asked
from osmosis.viewer.library import Library
from osmosis.viewer.live import LivePages
from osmosis.viewer.marking import change_of
from osmosis.viewer.render import SECURITY, STATIC, environment
from osmosis.viewer.view import Document, View

from .mixed_library import MixedLibrary

ENVIRONMENT = environment()
HOST = "127.0.0.1"
MAX_FORM_BYTES = 64 * 1024
AnyLibrary = TypeVar("AnyLibrary", bound=Library)


@dataclass
class ViewAccess:
    """Who may look: whoever opened the link first, for as long as the server runs."""

    port: int
    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Of the link; None when it was used."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """What forms carry."""

    @property
    def cookie(self) -> str:
        """Cookies are the same for all ports of a host."""
        return f"osmosis_view_{self.port}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def link(self, path: str = "") -> str:
        return f"{self.url}{path}?token={self.token}"

    def take(self, given: str) -> bool:
        """Whether the link is the right one, which it is once."""
        right = self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())
        if right:
            self.token = None
        return right

    def knows(self, request: Request) -> bool:
        given = request.cookies.get(self.cookie, "")
        return hmac.compare_digest(given.encode(), self.session.encode())


class CookieGate:
    """ASGI middleware: lets in who has the cookie; who brings the token gets it. Refuses requests of other sites."""

    def __init__(self, app: ASGIApp, *, access: ViewAccess) -> None:
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = self._refusal(request)
        if answer is None:
            await self.app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return error_page(Forbidden("this request was sent by another site", hint="open the page itself"))
        if self._access.knows(request):
            return None
        if request.method == "GET" and self._access.take(request.query_params.get("token", "")):
            rest = Asked(pair for pair in request.query_params.multi_items() if pair[0] != "token").link()
            answer = RedirectResponse(request.url.path + (rest if rest != "?" else ""), 303, headers=SECURITY)
            answer.set_cookie(self._access.cookie, self._access.session, httponly=True, samesite="strict", path="/")
            return answer
        hint = "a link works once, in one browser: run osmosis view again for another one"
        return error_page(Forbidden("this page is for whoever started osmosis view", hint=hint))


def shown(view: View, *, status: int = 200, csrf: str = "") -> HTMLResponse:
    text = ENVIRONMENT.get_template(view.template).render({"workspace": None, "csrf": csrf, **view.values})
    return HTMLResponse(text, status_code=status, headers={**SECURITY, "Cache-Control": "no-store"})


def render_static(view: View) -> str:
    """A page as a file of an export."""
    frame = {"workspace": None, "csrf": "", "static": True}
    return ENVIRONMENT.get_template(view.template).render({**view.values, **frame})


def indexed(library: AnyLibrary, told: Callable[[str, float], None]) -> AnyLibrary:
    """The library, when every run in it is indexed whole; `told` hears how far a long one is."""
    for card in library.cards():
        while card.state is not None and not (progress := library.run(card.id).table().progress).complete:
            told(card.name, progress.share)
    return library


def error_page(error: OsmosisError) -> HTMLResponse:
    return shown(View("error.html", {"error": error}), status=error.http_status)


def sent(found: View | Document, csrf: str) -> Response:
    if isinstance(found, View):
        return shown(found, csrf=csrf)
    headers = {**SECURITY, "Cache-Control": "no-store", **found.headers}
    return StreamingResponse(iter(found.content), media_type=found.media_type, headers=headers)


def application(library: MixedLibrary, access: ViewAccess) -> Starlette:
    """The pages of these runs behind the gate."""
    live = LivePages()
    asking_git = CapacityLimiter(1)  # a thread of its own: what git takes long for keeps no other page waiting

    async def any_page(request: Request) -> Response:
        asked = Asked(request.query_params.multi_items())
        path = str(request.path_params.get("path", ""))
        turns = asking_git if path in site.CODE else None
        return await run_sync(lambda: sent(site.of_library(library, path, asked), access.csrf), limiter=turns)

    async def form_of(request: Request) -> dict[str, str]:
        _check_length(request)
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        if not hmac.compare_digest(form.get("csrf", "").encode(), access.csrf.encode()):
            raise Forbidden("this form has expired", hint="reload the page and try again")
        return form

    async def marks(request: Request) -> Response:
        form = await form_of(request)
        run = request.path_params["run"]
        there = await run_sync(lambda: library.mark(run, change_of(form)))
        return RedirectResponse(f"/runs/{quote(there)}", 303, headers=SECURITY)

    async def annotate(request: Request) -> Response:
        form = await form_of(request)
        run, row, attempt = (request.path_params[name] for name in ("run", "row", "attempt"))
        asked = Asked(request.query_params.multi_items())

        def keep() -> str:
            source = library.run(run)
            record = Rollout.model_validate_json(source.rollout(row, attempt, asked.number("step") or 0))
            onward = after(source, record, asked)
            library.annotate(run, annotation_of(form, record, source.place().author or ""))
            return onward

        return RedirectResponse(await run_sync(keep), 303, headers=SECURITY)

    async def events(request: Request) -> Response:
        run, asked = request.path_params.get("run"), Asked(request.query_params.multi_items())

        def build() -> tuple[str, bool]:
            if run is None:
                view, final = site.changing_of_library(library, asked)
            else:
                view, final = site.changing(library.run(run), asked)
            return ENVIRONMENT.get_template(view.template).render(**view.values), final

        await run_sync(build)  # what there is not is said before a stream begins
        headers = {**SECURITY, "Cache-Control": "no-store"}
        stream = live.stream(f"{run or ''}?{asked.link()}", build)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def problem(_request: Request, error: Exception) -> Response:
        assert isinstance(error, OsmosisError)
        return error_page(error)

    async def missing(request: Request, _error: Exception) -> Response:
        return error_page(NotFound(f"there is no page {request.url.path}", hint="see the list of runs: /"))

    guard = HostNames()
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/events", events),
            Route("/runs/{run}/events", events),
            Route("/runs/{run}/marks", marks, methods=["POST"]),
            Route("/runs/{run}/rollouts/{row:int}/{attempt:int}/annotate", annotate, methods=["POST"]),
            Route("/", any_page),
            Route("/{path:path}", any_page),
        ],
        middleware=[
            Middleware(HostGuard, names=guard, hint="open the link that osmosis view printed"),
            Middleware(CookieGate, access=access),
        ],
        exception_handlers={OsmosisError: problem, 404: missing, 405: missing},
    )
    app.state.live = live
    return app


def _check_length(request: Request) -> None:
    """Forms are short; anything else is refused before it is read."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > MAX_FORM_BYTES:
        raise ValidationError("this form is too large", hint="shorten the comment")


class ViewServer(uvicorn.Server):
    """uvicorn's server; open event streams end with it, and something is done once it answers."""

    def __init__(self, config: uvicorn.Config, live: LivePages, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._live = live
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.stopping = True
        await super().shutdown(sockets=sockets)


def listen(port: int) -> socket.socket:
    """The listening socket; 0 takes a free port. Conflict when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        hint = "choose another one with --port, or leave --port out"
        raise Conflict(f"cannot listen on {HOST}:{port}: {error.strerror or error}", hint=hint) from error
    return listener


def config_of(app: Starlette) -> uvicorn.Config:
    """How it is served: quietly, and ended soon."""
    return uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")


def serve(library: MixedLibrary, access: ViewAccess, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until a signal ends it; `ready` is called once it answers."""
    app = application(library, access)
    server = ViewServer(config_of(app), app.state.live, ready)
    with _plain_end():
        server.run(sockets=[listener])


@contextmanager
def _plain_end() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more. A server that was told to stop, and did, has not failed."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
