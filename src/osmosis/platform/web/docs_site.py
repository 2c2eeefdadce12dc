"""The documentation under `/docs`: the site that `make docs-site` builds, which a release carries in its wheel.

Where none was built, one page says so. The site's own scripts stand in its pages, so the strict policy of the
platform's pages holds for everything but scripts; nothing is loaded from elsewhere, and it is the same for everybody.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from osmosis.errors import NotFound
from osmosis.viewer.render import SECURITY

SITE = Path(__file__).parents[2] / "_site"
_POLICY = SECURITY["Content-Security-Policy"].replace(
    "default-src 'self'", "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
)


class _Pages(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update({**SECURITY, "Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"})
        return response


def is_built(site: Path) -> bool:
    return (site / "index.html").is_file()


def mount_docs(app: FastAPI, site: Path = SITE) -> None:
    """Adds the site, or the sentence that it was not built."""
    if is_built(site):
        app.mount("/docs", _Pages(directory=site, html=True), name="docs")
        return

    async def not_built(request: Request) -> Response:
        raise NotFound("the documentation was not built into this installation", hint="make docs-site")

    app.add_api_route("/docs", not_built, include_in_schema=False)
    app.add_api_route("/docs/{path:path}", not_built, include_in_schema=False)
