"""The pages of the platform: what a person sees of runs, rollouts, datasets, secrets and Git Sync in a browser.

Rendered on the server, from the same services and records as the API; those of a run are the viewer's. Works
without JavaScript; with it, a run's figures follow by server-sent events. Nothing is loaded from elsewhere and no
script is inline.
"""

from __future__ import annotations

from fastapi import FastAPI

from osmosis.viewer.live import LivePages

from . import (
    cli_auth,
    dataset_pages,
    login,
    model_pages,
    openid_pages,
    people_pages,
    run_pages,
    secret_pages,
    submit_pages,
    token_pages,
    worker_pages,
    workspace_pages,
)
from .docs_site import mount_docs
from .templating import mount_static, show_missing


def mount(app: FastAPI) -> None:
    """Add the pages and their static files to the platform."""
    app.state.live = LivePages()
    mount_static(app)
    mount_docs(app)
    show_missing(app)
    for pages in (
        login, openid_pages, cli_auth, token_pages, people_pages, worker_pages, run_pages, model_pages, dataset_pages,
        secret_pages, submit_pages, workspace_pages,
    ):  # fmt: skip
        app.router.routes.extend(pages.router.routes)  # as in ..app
