"""What `eval submit` and `train submit` print under `--json`: the run, where its code is, and what it consists of.

Apart from what other commands print: a submit waits for whatever its answer brings along.
"""

from __future__ import annotations

from .body import Body, Moment


class GitPlace(Body):
    """The repository a run was submitted from."""

    identity: str | None = None
    remote_url: str | None = None


class PrintedSource(Body):
    """What a submitted run consists of."""

    rollout: str
    entrypoint: str
    model: str
    dataset: str
    branch: str | None = None
    commit_sha: str | None = None


class PrintedSubmit(Body):
    """`eval submit`, `train submit`."""

    id: str
    name: str
    status: str | None = None
    model_name: str
    dataset_name: str
    created_at: Moment | None = None
    url: str | None = None
    git: GitPlace | None = None
    workspace_directory: str
    config: PrintedSource
