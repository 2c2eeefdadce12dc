import hmac
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
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

from osmosis.base.http_server import HostGuard, HostNames
from osmosis.base.processes import signals_handled
from osmosis.errors import Conflict, Forbidden, NotFound, OsmosisError, ValidationError
from osmosis.local.viewing.library import LocalLibrary
from osmosis.records.run.rollout import Rollout
from osmosis.viewer import routes
from osmosis.viewer.page import SECURITY, STATIC, EventStreams, Page, QueryParams, build_environment
from osmosis.viewer.routes import next_url, parse_annotation, parse_marks, runs_page

ENVIRONMENT = build_environment()
HOST = "127.0.0.1"
MAX_FORM_BYTES = 64 * 1024
HEADERS = {**SECURITY, "Cache-Control": "no-store"}


@dataclass
class ViewAccess:
    port: int
    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        return f"osmosis_view_{self.port}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def link(self, path: str = "") -> str:
        return f"{self.url}{path}?token={self.token}"

    def use_token(self, token: str) -> bool:
        valid = self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())
        if valid:
            self.token = None
        return valid


@dataclass(eq=False)
class CookieGate:
    """ASGI middleware: requires the cookie, gives it to whoever has the token, and refuses requests of other sites."""

    app: ASGIApp
    access: ViewAccess

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._check(Request(scope, receive)) if scope["type"] == "http" else None
        await (response or self.app)(scope, receive, send)

    def _check(self, request: Request) -> Response | None:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return error_response(Forbidden("this request was sent by another site", hint="open the page itself"))
        session = request.cookies.get(self.access.cookie, "").encode()
        if hmac.compare_digest(session, self.access.session.encode()) or request.url.path.startswith("/static/"):
            return None
        if request.method == "GET" and self.access.use_token(request.query_params.get("token", "")):
            query = QueryParams(request.query_params.multi_items()).without("token").link()
            response = RedirectResponse(f"{request.url.path}{query}".rstrip("?"), 303, headers=SECURITY)
            response.set_cookie(self.access.cookie, self.access.session, httponly=True, samesite="strict", path="/")
            return response
        hint = "a link works once, in one browser: run osmosis view again for another one"
        return error_response(Forbidden("this page is for whoever started osmosis view", hint=hint))


def render(page: Page, *, csrf: str = "", static: bool = False) -> str:
    values = {"workspace": None, "csrf": csrf, "static": static, **page.values}
    return ENVIRONMENT.get_template(page.template).render(values)


def render_static(page: Page) -> str:
    return render(page, static=True)


def index_runs(library: LocalLibrary, on_progress: Callable[[str, float], None]) -> None:
    for card in library.cards():
        while card.state is not None and not (progress := library.run(card.id).table().progress).complete:
            on_progress(card.name, progress.share)


def error_response(error: OsmosisError) -> HTMLResponse:
    return HTMLResponse(render(Page("error.html", {"error": error})), error.http_status, HEADERS)


class _Pages:
    def __init__(self, library: LocalLibrary, access: ViewAccess) -> None:
        self.streams = EventStreams()
        self._library = library
        self._csrf = access.csrf
        self._git_limiter = CapacityLimiter(1)  # git gets a thread of its own: no other page waits for it

    async def page(self, request: Request) -> Response:
        path = str(request.path_params.get("path", ""))
        limiter = self._git_limiter if path in routes.CODE_PATHS else None
        params = _params(request)

        def build() -> Response:
            page = routes.build_page(self._library, path, params)
            if isinstance(page, Page):
                return HTMLResponse(render(page, csrf=self._csrf), headers=HEADERS)
            headers = {**HEADERS, **page.headers}
            return StreamingResponse(iter(page.content), media_type=page.media_type, headers=headers)

        return await run_sync(build, limiter=limiter)

    async def change_marks(self, request: Request) -> Response:
        form, run = await self._read_form(request), request.path_params["run"]
        name = await run_sync(lambda: self._library.mark(run, parse_marks(form)))
        return RedirectResponse(f"/runs/{quote(name)}", 303, headers=SECURITY)

    async def annotate(self, request: Request) -> Response:
        form = await self._read_form(request)
        run, row, attempt = (request.path_params[name] for name in ("run", "row", "attempt"))
        params = _params(request)

        def store() -> str:
            source = self._library.run(run)
            record = Rollout.model_validate_json(source.rollout(row, attempt, params.integer("step") or 0))
            url = next_url(source, record, params)
            self._library.annotate(run, parse_annotation(form, record, source.context().author or ""))
            return url

        return RedirectResponse(await run_sync(store), 303, headers=SECURITY)

    async def _read_form(self, request: Request) -> dict[str, str]:
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_FORM_BYTES:
            raise ValidationError("this form is too large", hint="shorten the comment")
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        if not hmac.compare_digest(form.get("csrf", "").encode(), self._csrf.encode()):
            raise Forbidden("this form has expired", hint="reload the page and try again")
        return form

    async def events(self, request: Request) -> Response:
        run, params = request.path_params.get("run"), _params(request)

        def build() -> tuple[str, bool]:
            if run is None:
                page = runs_page(self._library, params)
                return render(page.changing), page.final
            changing, final = routes.build_run_changes(self._library.run(run), params)
            return render(changing), final

        await run_sync(build)  # an error is an answer before the stream begins
        stream = self.streams.stream(f"{run or ''}?{params.link()}", build)
        return StreamingResponse(stream, media_type="text/event-stream", headers=HEADERS)


def _params(request: Request) -> QueryParams:
    return QueryParams(request.query_params.multi_items())


async def _show_error(request: Request, error: Exception) -> Response:
    if isinstance(error, OsmosisError):
        return error_response(error)
    return error_response(NotFound(f"there is no page {request.url.path}", hint="see the list of runs: /"))


def application(library: LocalLibrary, access: ViewAccess) -> Starlette:
    pages = _Pages(library, access)
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/events", pages.events),
            Route("/runs/{run}/events", pages.events),
            Route("/runs/{run}/marks", pages.change_marks, methods=["POST"]),
            Route("/runs/{run}/rollouts/{row:int}/{attempt:int}/annotate", pages.annotate, methods=["POST"]),
            Route("/", pages.page),
            Route("/{path:path}", pages.page),
        ],
        middleware=[
            Middleware(HostGuard, names=HostNames(), hint="open the link that osmosis view printed"),
            Middleware(CookieGate, access=access),
        ],
        exception_handlers={OsmosisError: _show_error, 404: _show_error, 405: _show_error},
    )
    app.state.streams = pages.streams
    return app


class ViewServer(uvicorn.Server):
    def __init__(self, app: Starlette, on_ready: Callable[[], None]) -> None:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")
        super().__init__(config)
        self._streams: EventStreams = app.state.streams
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.stopping = True
        await super().shutdown(sockets=sockets)


def listen(port: int) -> socket.socket:
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


def serve(library: LocalLibrary, access: ViewAccess, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    server = ViewServer(application(library, access), on_ready)
    # uvicorn raises the signal again after it stopped, and the server has not failed.
    with signals_handled(lambda *_: None, signal.SIGINT, signal.SIGTERM):
        server.run(sockets=[listener])
