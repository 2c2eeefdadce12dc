"""The answer of a submit, apart from all else that is said of a run: a submit waits for no more than it needs."""

from __future__ import annotations

from .body import Body, Moment


class SubmittedRun(Body):
    """The answer of a submit."""

    id: str
    name: str
    status: str | None = None
    created_at: Moment | None = None
    platform_url: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    """The commit that will run."""
    sampled_rows: int | None = None
    total_dataset_rows: int | None = None
    sample_seed: int | None = None
