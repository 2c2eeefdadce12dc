from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from osmosis.errors import AuthRequired, NotFound, OsmosisError, ValidationError
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.db import DatabaseUnavailable
from osmosis.platform.http import log_error
from osmosis.platform.web.session import LoginNeeded, Viewer, authenticate_viewer, event_streams
from osmosis.platform.workspaces import service as workspaces
from osmosis.viewer.page import SECURITY, Build, Document, Page, build_environment

FOLDER = Path(__file__).parent
SITE = Path(__file__).parents[2] / "_site"
_POLICY = SECURITY["Content-Security-Policy"].replace(
    "default-src 'self'", "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
)
MAX_FORM_BYTES = 64 * 1024
ENVIRONMENT = build_environment(FOLDER / "templates")


def html(view: Page) -> str:
    return ENVIRONMENT.get_template(view.template).render(**view.values)


def page(name: str, viewer: Viewer | None, *, status: int | None = None, **values: object) -> Response:
    """Render a page; among the values, `workspace` is the name of its workspace, and a `problem` has the status."""
    problem = values.get("problem")
    status = status or (problem.http_status if isinstance(problem, OsmosisError) else 200)
    return render_framed(Page(name, values), viewer, status=status)


def render_framed(view: Page | Document, viewer: Viewer | None, *, status: int = 200, **more: object) -> Response:
    headers = {**SECURITY, "Cache-Control": "no-store"}
    if isinstance(view, Document):
        return StreamingResponse(iter(view.content), media_type=view.media_type, headers={**headers, **view.headers})
    mine: list[str] = []
    if viewer is not None:
        with viewer.platform.db.read() as session:
            mine = [row.name for row, _, _ in workspaces.list_workspaces(session, viewer.user)]
    frame = {"who": viewer, "csrf": viewer.csrf if viewer else "", "mine": mine}
    frame |= {"workspace": None, "here": "", "shared_until": None}
    text = html(Page(view.template, {**frame, **more, **view.values}))
    return HTMLResponse(text, status_code=status, headers=headers)


def stream_events(request: Request, viewer: Viewer | None, build: Build) -> Response:
    build()  # what there is not is said before a stream begins

    def rebuild() -> tuple[str, bool]:
        if viewer is not None:
            authenticate_viewer(request)
        return build()

    headers = {**SECURITY, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    subject = f"{viewer.token.id} {request.url}" if viewer else hash_token(str(request.url))  # which has a secret
    stream = event_streams(request.app).stream(subject, rebuild)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def stream_page(request: Request, viewer: Viewer, build_page: Callable[[], Page]) -> Response:
    def build() -> tuple[str, bool]:
        view = build_page()
        return html(view.changing), view.final

    return stream_events(request, viewer, build)


def redirect(to: str) -> RedirectResponse:
    return RedirectResponse(to, status_code=303, headers=SECURITY)


class PageRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                if request.method == "POST":
                    length = request.headers.get("content-length", "")
                    if not length.isdigit() or int(length) > MAX_FORM_BYTES:
                        raise ValidationError("this form is too large", hint="go back and shorten it")
                return await handler(request)
            except LoginNeeded as needed:
                back = "" if needed.page == "/" else f"?next={quote(needed.page, safe='')}"
                return redirect(f"/login{back}")
            except OsmosisError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                fields = ", ".join(sorted({str(problem["loc"][-1]) for problem in error.errors()}))
                message = f"missing or invalid values: {fields}"
                return error_page(request, ValidationError(message, hint="go back and fix it"))
            except HTTPException:
                raise
            except Exception as error:  # noqa: BLE001 - the border of a page: a person gets a page, the log the traceback
                return error_page(request, log_error(request, error))

        return handle_page


def page_router() -> APIRouter:
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def error_page(request: Request, error: OsmosisError) -> Response:
    viewer = None
    if not isinstance(error, DatabaseUnavailable):
        with suppress(AuthRequired):
            viewer = authenticate_viewer(request)
    response = page("error.html", viewer, status=error.http_status, error=error)
    if isinstance(error, AuthRequired):
        response.headers["WWW-Authenticate"] = "Bearer"
    if (wait := error.details.get("retry_after")) is not None:
        response.headers["Retry-After"] = str(wait)
    return response


def show_missing(app: FastAPI) -> None:
    """Show a page for an unknown address to browsers; other clients get the API's answer."""
    before = app.exception_handlers[HTTPException]

    async def missing(request: Request, error: HTTPException) -> Response:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if error.status_code == 404 and wants_page and not request.url.path.startswith(("/api/", "/v1", "/static/")):
            unknown = NotFound(f"there is no page {request.url.path}", hint="the list of runs is at /")
            return await run_in_threadpool(error_page, request, unknown)
        answer: Response = await before(request, error)  # type: ignore[misc]  # Starlette's handlers may be either kind
        return answer

    app.exception_handler(HTTPException)(missing)


class Assets(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURITY)
        stamped = b"v=" in scope.get("query_string", b"")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if stamped else "no-cache"
        return response


class _Pages(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update({**SECURITY, "Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"})
        return response


def mount_docs(app: FastAPI, site: Path = SITE) -> None:
    if (site / "index.html").is_file():
        app.mount("/docs", _Pages(directory=site, html=True), name="docs")
        return
    router = page_router()

    @router.get("/docs")
    @router.get("/docs/{path:path}")
    def not_built() -> Response:
        raise NotFound(
            "the documentation was not built into this installation",
            hint="in a clone of the repository: make docs-site, then start the platform again; the folder docs/ there "
            "has the same pages, from docs/tutorial.md on",
        )

    app.router.routes.extend(router.routes)
