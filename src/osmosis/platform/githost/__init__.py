"""The platform's own git host: `/git/<owner>/<repository>.git` over smart HTTP.

Git itself speaks the protocol (`git http-backend`); this package checks who asks and for what, streams bytes
both ways, and starts Git Sync after a push. It never maps a request path to a file: the repository comes from
the database, and only the two pack services exist.
"""

from __future__ import annotations

from fastapi import FastAPI

from osmosis.platform.gitsync import syncing

from .routes import router


def mount(app: FastAPI) -> None:
    """Add the git host's routes to the platform, and close syncs that a former process left open."""
    syncing.recover(app.state.platform.db)
    app.router.routes.extend(router.routes)  # as in ..app
