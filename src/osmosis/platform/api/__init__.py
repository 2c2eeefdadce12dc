"""HTTP for clients and jobs: routes parse and call services, nothing more."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Every router of the API, in order of match."""
    from . import auth, browser, datasets, eval_runs, jobs, models, secrets, sync, training_runs, workspaces

    parts = (auth, browser, workspaces, sync, datasets, secrets, eval_runs, training_runs, models, jobs)
    return [part.router for part in parts]
