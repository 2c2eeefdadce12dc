"""HTTP for clients and jobs: routes parse and call services, nothing more."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Every router of the API, in order of match."""
    from . import (
        auth,
        browser,
        datasets,
        eval_runs,
        imports,
        jobs,
        models,
        rollout_servers,
        secrets,
        sync,
        training_runs,
        workspaces,
    )

    parts = (
        auth,
        browser,
        workspaces,
        sync,
        datasets,
        secrets,
        imports,
        eval_runs,
        training_runs,
        models,
        rollout_servers,
        jobs,
    )
    return [part.router for part in parts]
