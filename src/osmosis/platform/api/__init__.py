"""HTTP for clients and jobs: routes parse and call services, nothing more."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Every router of the API, in order of match."""
    from . import auth, sync

    return [auth.router, sync.router]
