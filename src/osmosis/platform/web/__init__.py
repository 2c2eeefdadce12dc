"""The platform's pages: without JavaScript they work, with it figures follow by server-sent events."""

from fastapi import FastAPI

from osmosis.platform.web import dataset_pages, login_pages, model_pages, people_pages, run_pages, workspace_pages
from osmosis.platform.web.templating import Assets, mount_docs, show_missing
from osmosis.viewer.page import STATIC, EventStreams


def mount(app: FastAPI) -> None:
    app.state.live = EventStreams()
    app.mount("/static", Assets(directory=STATIC), name="static")
    mount_docs(app)
    show_missing(app)
    for pages in (
        login_pages, people_pages, run_pages, model_pages, dataset_pages, workspace_pages,
    ):  # fmt: skip
        app.router.routes.extend(pages.router.routes)  # as in ..app
