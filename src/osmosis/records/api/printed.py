from typing import Literal

from osmosis.records.api.accounts import WorkspaceRole, WorkspaceRow
from osmosis.records.api.body import Body, Moment
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.api.runs import EvalMetrics, EvalRunDetail, RunFailure, RunResults, RunSummary
from osmosis.records.api.training import CheckpointRow, ModelRow, TrainingMetrics, TrainingRunDetail
from osmosis.records.api.workspaces import SecretRow
from osmosis.records.run.report import Report


class PrintedEval(EvalRunDetail):
    """`eval info`."""

    summary: RunSummary
    metrics: EvalMetrics | None


class PrintedTraining(TrainingRunDetail):
    """`train info`."""

    summary: RunSummary
    metrics: TrainingMetrics | None
    checkpoints: list[CheckpointRow]


class PrintedEnd(Body):
    """A finished run, printed by `wait` and `submit --wait`; the latter with the keys of `PrintedSubmit`."""

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
    """True when it hides the workspace's secret of the same name."""


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


class GitPlace(Body):
    identity: str | None = None
    remote_url: str | None = None


class PrintedSource(Body):
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
