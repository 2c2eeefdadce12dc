"""Templates, headers and errors of pages.

Every page leaves through `page()`: escaped by default, with a content security policy that allows this platform's
own files and nothing else. Known errors become pages here, with what to do next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from osmosis.base.full_disk import full_disk
from osmosis.errors import AuthRequired, InternalError, NotFound, OsmosisError, ValidationError
from osmosis.platform.services import workspaces
from osmosis.viewer.live import Build
from osmosis.viewer.render import SECURITY, STATIC, environment
from osmosis.viewer.view import Document, View

from .docs_site import SITE, is_built
from .session import LoginNeeded, Viewer, live_pages, login_url, platform_of, viewer

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
MAX_FORM_BYTES = 64 * 1024
ENVIRONMENT = environment(HERE / "templates")
ENVIRONMENT.globals["has_docs"] = is_built(SITE)


def html(view: View) -> str:
    """One view as text."""
    return ENVIRONMENT.get_template(view.template).render(**view.values)


def page(request: Request, name: str, who: Viewer | None, *, status: int = 200, **values: object) -> HTMLResponse:
    """A whole page. `workspace` among the values is the name of the workspace it belongs to."""
    return framed(request, View(name, values), who, status=status)


def framed(request: Request, view: View, who: Viewer | None, *, status: int = 200, **more: object) -> HTMLResponse:
    """A view as a whole page, in the frame of this platform; `more` are values of the frame, as of `page`."""
    mine: list[str] = []
    if who is not None:
        with platform_of(request).db.read() as session:
            mine = [row.name for row, _, _ in workspaces.of_user(session, who.user)]
    frame = {"who": who, "csrf": who.csrf if who else "", "mine": mine, "workspace": None, "here": ""}
    text = html(View(view.template, {**frame, **more, **view.values}))
    return HTMLResponse(text, status_code=status, headers={**SECURITY, "Cache-Control": "no-store"})


def document(found: Document) -> Response:
    """Something that is no page, sent as it is made."""
    headers = {**SECURITY, "Cache-Control": "no-store", **found.headers}
    return StreamingResponse(iter(found.content), media_type=found.media_type, headers=headers)


def streamed(request: Request, subject: str, build: Build) -> Response:
    """The events of a page (`viewer.live`); `subject` tells it from what others see."""
    headers = {**SECURITY, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = live_pages(request.app).stream(subject, build)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def redirect(to: str) -> RedirectResponse:
    return RedirectResponse(to, status_code=303, headers=SECURITY)


class PageRoute(APIRoute):
    """A route whose errors are pages, and where a missing session leads to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                _check_size(request)
                return await handler(request)
            except LoginNeeded as needed:
                return redirect(login_url(needed.page))
            except OsmosisError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                return error_page(request, _malformed(error))
            except HTTPException:
                raise
            except Exception as error:
                # The border of a page: a person gets a page, the log the traceback.
                if known := full_disk(error, where="the platform"):
                    log.error("%s %s: %s", request.method, request.url.path, known)
                    return error_page(request, known)
                log.exception("%s %s failed", request.method, request.url.path)
                return error_page(request, _bug(request, error))

        return shown


def _check_size(request: Request) -> None:
    """Forms of pages are short; anything else is refused before it is read."""
    if request.method == "POST":
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_FORM_BYTES:
            raise ValidationError("this form is too large", hint="go back and shorten it")


def _malformed(error: RequestValidationError) -> ValidationError:
    fields = ", ".join(sorted({str(found["loc"][-1]) for found in error.errors()}))
    return ValidationError(f"missing or invalid values: {fields}", hint="go back and fix it")


def _bug(request: Request, error: Exception) -> InternalError:
    return InternalError(
        f"internal error in {request.method} {request.url.path}: {type(error).__name__}",
        hint="see the platform's log: osmosis platform logs",
    )


def error_page(request: Request, error: OsmosisError) -> HTMLResponse:
    """A known error, with the navigation when the person is logged in."""
    try:
        who = viewer(request)
    except (LoginNeeded, AuthRequired):
        who = None
    response = page(request, "error.html", who, status=error.http_status, error=error)
    if isinstance(error, AuthRequired):
        response.headers["WWW-Authenticate"] = "Bearer"
    if (wait := error.details.get("retry_after")) is not None:
        response.headers["Retry-After"] = str(wait)
    return response


def show_missing(app: FastAPI) -> None:
    """An address that there is none of is a page for a browser; who asks for anything else gets what it got before."""
    before = app.exception_handlers[HTTPException]

    async def missing(request: Request, error: HTTPException) -> Response:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if error.status_code == 404 and wants_page and not request.url.path.startswith(("/api/", "/v1/", "/static/")):
            unknown = NotFound(f"there is no page {request.url.path}", hint="the list of runs is at /")
            return await run_in_threadpool(error_page, request, unknown)
        answer: Response = await before(request, error)  # type: ignore[misc]  # Starlette's handlers may be either kind
        return answer

    app.exception_handler(HTTPException)(missing)


class _Assets(StaticFiles):
    """Static files with the same headers as pages; a stamped address never changes its content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURITY)
        stamped = b"v=" in scope.get("query_string", b"")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if stamped else "no-cache"
        return response


def mount_static(app: FastAPI) -> None:
    app.mount("/static", _Assets(directory=STATIC), name="static")
