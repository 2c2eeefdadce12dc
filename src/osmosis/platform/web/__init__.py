"""The pages of the platform: what a person sees of runs, rollouts, datasets, secrets and Git Sync in a browser.

Rendered on the server, from the same services and records as the API; those of a run are the viewer's. Works
without JavaScript; with it, a run's figures follow by server-sent events. Nothing is loaded from elsewhere and no
script is inline.
"""

from __future__ import annotations

from fastapi import FastAPI

from . import cli_auth, login, run_pages, workspace_pages
from .live import LivePages
from .templating import mount_static


def mount(app: FastAPI) -> None:
    """Add the pages and their static files to the platform."""
    app.state.live = LivePages()
    mount_static(app)
    for pages in (login, cli_auth, run_pages, workspace_pages):
        app.router.routes.extend(pages.router.routes)  # as in ..app
