"""What commands print under `--json` where that is more than one body of the API: `osmosis schema` shows these."""

from __future__ import annotations

from typing import Literal

from osmosis.records.report import Report

from .accounts import WorkspaceRole, WorkspaceRow
from .body import Body, Moment
from .eval_bodies import EvalMetrics, EvalRunDetail
from .run_bodies import RunFailure, RunResults, RunSummary
from .secret import SecretRow
from .training_bodies import ModelRow, TrainingMetrics, TrainingRunDetail
from .uploads import DatasetEntry


class PrintedEval(EvalRunDetail):
    """`eval info`."""

    summary: RunSummary
    metrics: EvalMetrics | None


class PrintedTraining(TrainingRunDetail):
    """`train info`."""

    summary: RunSummary
    metrics: TrainingMetrics | None


class PrintedEnd(Body):
    """A run that is over, as `wait` and `submit --wait` print it; the latter with the keys of `PrintedSubmit`."""

    id: str
    name: str
    url: str | None = None
    status: str
    summary: RunSummary
    results: RunResults
    report: Report | None = None
    failure: RunFailure | None = None


class PrintedUpload(Body):
    """`eval upload`."""

    id: str | None = None
    name: str | None = None
    url: str | None = None
    files: int
    sent: int
    already: bool


class PrintedDataset(DatasetEntry):
    """`dataset upload`."""

    uploaded: bool | None = None


class PrintedSecret(SecretRow):
    """`secret list`."""

    scope: Literal["personal", "workspace"] | None = None
    shadows: bool | None = None
    """It hides the workspace's secret of the same name."""


class PrintedWorkspace(WorkspaceRow):
    """`workspace list`, `workspace current`."""

    current: bool | None = None
    chosen_by: str | None = None
    platform_url: str | None = None


class PrintedModel(ModelRow):
    """`model list`."""

    type: Literal["base", "lora"] | None = None


class PrintedAccount(Body):
    email: str | None = None
    name: str | None = None
    expires_at: Moment | None = None
    platform_url: str | None = None
    source: str | None = None
    effective_source: str | None = None
    persistent_login: bool | None = None
    token_id: str | None = None


class PrintedIdentity(PrintedAccount):
    """`whoami`."""

    account: PrintedAccount
    workspace: WorkspaceRole | None = None


class PrintedPlatform(Body):
    """`platform start`, `platform status`."""

    url: str | None = None
    pid: int | None = None
    port: int | None = None
    version: str | None = None
    started_at: Moment | None = None
    data_dir: str | None = None
    log: str | None = None
