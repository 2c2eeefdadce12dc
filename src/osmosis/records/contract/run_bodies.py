"""Runs: their answers in lists and whole, what a submit and a retry say, what is shared by both kinds of run.

The extra keys (`progress`, `report`, `failure`, `events`) are ours; other servers leave them away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from osmosis.base.json_types import JsonObject
from osmosis.records.marks import Marks
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout
from osmosis.records.run_kind import RunKind
from osmosis.records.run_status import RunStatus
from osmosis.records.source import SnapshotNote

from .body import Body, Moment, OrEmpty, Page, RequestBody, spelled
from .submitted import SubmittedRun

OVER = frozenset({status.value for status in RunStatus if status.over} | {"crashed", "killed", "error"})
"""The statuses in which nothing comes any more, on any server."""


class RetryRun(RequestBody):
    """`POST eval-runs/{name}/retry`."""

    secrets: dict[str, str] | None = Field(None, repr=False)
    """Values for this retry only."""
    everything: bool | None = None
    """Of an evaluation in which all succeeded: run all of it again, and drop what is there."""
    max_cost: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Of an evaluation: its budget in USD from now on, over everything it has spent and will spend."""
    max_tokens_total: int | None = Field(None, ge=1)
    """The same for tokens."""


class NamedRef(Body):
    """Something a run used: a dataset, a rollout, a model."""

    id: str | None = None
    name: str | None = None


class MarkedRun(Body, Marks):
    """What is written on a run, and its name."""

    id: str
    name: str


class RunProgress(Body):
    """How far a job is."""

    stage: str | None = None
    completed: int | None = None
    total: int | None = None


class RunEvent(Body):
    """A change of a run's status."""

    timestamp: Moment | None = None
    before: str | None = None
    status: str | None = None
    reason: str | None = None


class RunFailure(Body):
    """Why a run failed."""

    phase: str | None = None
    category: str | None = None
    message: str | None = None
    fix: str | None = None
    """What to type."""


class RunRow(Body):
    """A run in a list."""

    id: str
    name: str
    status: str
    created_at: Moment | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    creator_name: str | None = None
    creator_email: str | None = None
    platform_url: str | None = None
    progress: RunProgress | None = None
    resolved_secret_scopes: dict[str, str] | None = None
    """NAME -> `workspace`, `user`, `user_override` (shadows the workspace's) or `run`."""
    stop_requested: bool | None = None
    priority: int | None = None
    """Among those of its workspace that wait, the highest comes first."""
    imported: bool | None = None
    """It was made on somebody's machine and uploaded."""
    tags: list[str] | None = None
    note: str | None = None
    pinned: bool | None = None

    @property
    def over(self) -> bool:
        """Nothing comes any more."""
        return self.status in OVER


class RewardStats(Body):
    """Over the rollouts that have a reward; population standard deviation."""

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    median: float | None = None
    max: float | None = None
    pass_at_k: dict[str, float | None] | None = None
    """k -> estimate."""


class RunResults(Body):
    """A run's figures in the contract's words."""

    score: float | None = None
    pass_rate: float | None = None
    pass_threshold: float | None = None
    graded: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    total_runs: int | None = None
    sampled_rows: int | None = None
    total_dataset_rows: int | None = None
    total_tokens: int | None = None
    resumed_count: int | None = None
    reward_stats: RewardStats | None = None
    """Absent in lists."""


def _or_none(value: object, read: ValidatorFunctionWrapHandler) -> Report | None:
    try:
        report: Report | None = read(value)
        return report
    except ValidationError:
        return None


RunReport = Annotated[Report | None, WrapValidator(_or_none)]
"""The report of a platform of ours; what another server calls so is none."""


def _or_nothing(value: object, read: ValidatorFunctionWrapHandler) -> RowQuarantine | None:
    try:
        found: RowQuarantine | None = read(value)
        return found
    except ValidationError:
        return None


class RunSummary(Body):
    """The figures that `osmosis eval info` and `wait` print first."""

    avg_reward: float | None
    pass_rate: float | None
    graded: int | None
    passed: int | None
    failed: int | None
    skipped: int | None
    progress: dict[str, int | str | None]
    """`completed`, `total` and `unit`: `rollouts`."""
    pass_threshold: float | None
    total_tokens: int | None
    dataset_rows: int | None


class RunDetail(Body):
    """One run, whole; the row itself is under `eval_run` or `training_run`."""

    kind: ClassVar[RunKind]
    config: JsonObject | None = None
    """`[experiment]`'s keys at the top, the other tables below their names."""
    dataset: NamedRef | None = None
    rollout: NamedRef | None = None
    entrypoint: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    env_config: dict[str, str] | None = None
    resolved_secret_scopes: dict[str, str] | None = None
    failure: RunFailure | None = None
    events: Annotated[list[RunEvent], OrEmpty] = Field(default_factory=list)
    sample_seed: int | None = None
    """Of the random rows."""
    snapshot: SnapshotNote | None = None
    """What was not committed, when a working tree was submitted as it was."""
    quarantine: Annotated[RowQuarantine | None, WrapValidator(_or_nothing)] = None
    """Of an evaluation: the rows that do not decide, as the `quarantine.toml` of its commit names them."""
    results: RunResults | None = None
    report: RunReport = None

    @property
    def run(self) -> RunRow:
        """The row."""
        raise NotImplementedError

    @property
    def figures(self) -> RunResults:
        """The results, wherever a server says them."""
        return self.results or RunResults()

    @property
    def unscored(self) -> bool:
        """There were rollouts, and none of them has a score."""
        if self.report is not None:
            return self.report.unscored
        return self.figures.graded == 0 and bool(self.figures.failed)

    @property
    def counted(self) -> tuple[int, int]:
        """Rollouts done, and how many there will be."""
        if self.report is not None:
            return self.report.completed, self.report.total
        progress = self.run.progress or RunProgress()
        return progress.completed or 0, progress.total or 0

    @property
    def stage(self) -> str:
        """What the job is doing; empty when it does nothing, or is not known."""
        progress = self.run.progress
        return "" if self.run.over or progress is None else progress.stage or ""

    def to_summary(self) -> RunSummary:
        """The figures in the words of the command line's envelope."""
        found = self.figures
        completed, total = self.counted
        return RunSummary(
            avg_reward=found.score,
            pass_rate=found.pass_rate,
            graded=found.graded,
            passed=found.passed,
            failed=found.failed,
            skipped=found.skipped,
            progress={"completed": completed, "total": total or found.total_runs, "unit": "rollouts"},
            pass_threshold=found.pass_threshold,
            total_tokens=found.total_tokens,
            dataset_rows=found.total_dataset_rows,
        )


class RunPriority(RequestBody):
    """Its place among the runs of the workspace that wait: the highest first."""

    priority: int = Field(ge=-100, le=100)


class StoppingRun(SubmittedRun):
    """The answer of a stop."""

    stop_requested: bool


class RetriedRun(Body):
    """The answer of a retry."""

    id: str | None = None
    name: str | None = None
    status: str | None = None
    workflow_id: str | None = None
    retryable_samples: int | None = None
    """Rollouts that run again; 0: the whole run, from the start."""
    platform_url: str | None = None


class RunFile(Body):
    """A file that a run left."""

    path: str
    size: int | None = None
    token: str | None = None


class FileTotals(Body):
    files: int
    bytes: int


class RunFiles(Body):
    """What can be downloaded of a run."""

    files: Annotated[list[RunFile], OrEmpty] = Field(default_factory=list)
    totals: FileTotals | None = None


class WantedFile(RequestBody):
    path: str
    token: str | None = None


class WantedFiles(RequestBody):
    """`POST eval-runs/{name}/samples/download-urls`."""

    items: list[WantedFile]


class FileAddress(Body):
    """Where one file can be fetched."""

    path: str
    url: str | None = Field(None, validation_alias=spelled("url", "presignedUrl", "presigned_url"))
    token: str | None = None


class FileAddresses(Body):
    items: Annotated[list[FileAddress], OrEmpty] = Field(
        default_factory=list, validation_alias=spelled("items", "files", "urls")
    )
    expires_in: int | None = None
    """Seconds."""


class RolloutRow(Body):
    """A rollout in a list."""

    rollout_id: str
    row_index: int
    attempt: int
    step: int = 0
    """Of a training run."""
    status: str
    """`success`, `failed` or `skipped`."""
    reward: float | None = None
    tokens: int | None = None
    duration_ms: float | None = None
    failure_category: str | None = None
    created_at: Moment | None = None


class RolloutPage(Page):
    rollouts: Annotated[list[RolloutRow], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[RolloutRow]:
        return self.rollouts


class RunOutcome(Body, Rollout):
    """A rollout as far as figures need it: without what was said in it."""


class OutcomePage(Page):
    outcomes: Annotated[list[RunOutcome], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[RunOutcome]:
        return self.outcomes


class RunPage(Page):
    """A page of runs of one kind."""

    @property
    def rows(self) -> Sequence[RunRow]:
        raise NotImplementedError
