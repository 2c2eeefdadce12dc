"""Evaluation and training runs. `progress`, `report`, `failure` and `events` are ours; other servers leave them out."""

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, Moment, OrEmpty, Page, RequestBody
from osmosis.records.config.optimize import Optimization
from osmosis.records.run.annotations import Marks
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import RowQuarantine
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.status import RunKind, RunStatus
from osmosis.records.run.study import Study, StudyState

OVER = frozenset({status.value for status in RunStatus if status.over} | {"crashed", "killed", "error"})


class RetryRun(RequestBody):
    secrets: dict[str, str] | None = Field(None, repr=False)
    everything: bool | None = None
    """Run all of an evaluation without failures again, and drop its results."""
    max_cost: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The new budget of an evaluation in USD, including what it has spent."""
    max_tokens_total: int | None = Field(None, ge=1)


class NamedRef(Body):
    id: str | None = None
    name: str | None = None


class MarkedRun(Body, Marks):
    id: str
    name: str


class RunProgress(Body):
    stage: str | None = None
    completed: int | None = None
    total: int | None = None


class RunEvent(Body):
    timestamp: Moment | None = None
    before: str | None = None
    status: str | None = None
    reason: str | None = None


NoticeEvent = Literal["run.ended", "run.alarm", "schedule.failed"]


class Notice(RequestBody):
    """A message of `[notify]`."""

    event: NoticeEvent
    text: str
    """A line for people."""
    workspace: str = ""
    url: str = ""
    run: str | None = None
    kind: str | None = None
    status: str | None = None
    model: str | None = None
    dataset: str | None = None
    reward: float | None = None
    reason: str = ""
    alarms: list[str] = Field(default_factory=list)
    sent_at: str | None = None


class RunFailure(Body):
    phase: str | None = None
    category: str | None = None
    message: str | None = None
    fix: str | None = None


class RunRow(Body):
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
    """Each secret's `workspace`, `user`, `user_override` (shadows the workspace's) or `run`."""
    stop_requested: bool | None = None
    priority: int | None = None
    """Waiting runs of a workspace start with the highest."""
    imported: bool | None = None
    tags: list[str] | None = None
    note: str | None = None
    pinned: bool | None = None

    @property
    def over(self) -> bool:
        return self.status in OVER


class RewardStats(Body):
    """Over the rollouts that have a reward; population standard deviation."""

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    median: float | None = None
    max: float | None = None
    pass_at_k: dict[str, float | None] | None = None


class RunResults(Body):
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


def _or_none(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError:
        return None


RunReport = Annotated[Report | None, WrapValidator(_or_none)]  # Missing for a report of another server


class RunSummary(Body):
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
    kind: ClassVar[RunKind]
    config: JsonObject | None = None
    """Keys of `[experiment]` at the top, the other tables below their names."""
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
    snapshot: SnapshotNote | None = None
    """The uncommitted changes of a submitted working tree."""
    quarantine: Annotated[RowQuarantine | None, WrapValidator(_or_none)] = None
    """The quarantined rows of an evaluation, from the `quarantine.toml` of its commit."""
    results: RunResults | None = None
    report: RunReport = None
    optimization: Annotated[Optimization | None, WrapValidator(_or_none)] = None

    @property
    def run(self) -> RunRow:
        raise NotImplementedError

    @property
    def figures(self) -> RunResults:
        return self.results or RunResults()

    @property
    def unscored(self) -> bool:
        if self.report is not None:
            return self.report.unscored
        return self.figures.graded == 0 and bool(self.figures.failed)

    @property
    def counted(self) -> tuple[int, int]:
        if self.report is not None:
            return self.report.completed, self.report.total
        progress = self.run.progress or RunProgress()
        return progress.completed or 0, progress.total or 0

    @property
    def stage(self) -> str:
        progress = self.run.progress
        return "" if self.run.over or progress is None else progress.stage or ""

    def to_summary(self) -> RunSummary:
        figures = self.figures
        completed, total = self.counted
        progress = {"completed": completed, "total": total or figures.total_runs, "unit": "rollouts"}
        rows = figures.total_dataset_rows
        return RunSummary.from_row(figures, avg_reward=figures.score, progress=progress, dataset_rows=rows)


MAX_SHARE_DAYS = 90


class NewShareLink(RequestBody):
    expires_in: int = Field(7 * 86400, ge=60, le=MAX_SHARE_DAYS * 86400)


class ShareLink(Body):
    id: str
    expires_at: Moment | None = None
    creator_name: str | None = None
    url: str | None = None
    """Present only in the answer that creates it."""


class ShareLinkList(Body):
    links: list[ShareLink] = Field(default_factory=list)


class ScheduleRow(Body):
    name: str
    every: str
    next_at: Moment | None = None
    creator_name: str | None = None
    last_run_name: str | None = None
    last_run_status: str | None = None
    error: str = ""
    """The reason that there was no run at the last time, if there was none."""


class ScheduleList(Body):
    schedules: list[ScheduleRow] = Field(default_factory=list)


class NewDecision(RequestBody):
    """`POST decisions`: begin a study, or go on with the one of this name and these facts."""

    study: Study
    """Name, questions, arms, limits and facts; the rest is the platform's."""
    configs: dict[str, JsonObject]
    """The body of a submit for each arm."""


class DecisionList(Body):
    decisions: list[StudyState] = Field(default_factory=list)


class RunPriority(RequestBody):
    priority: int = Field(ge=-100, le=100)


class SubmittedRun(Body):
    id: str
    name: str
    status: str | None = None
    created_at: Moment | None = None
    platform_url: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    sampled_rows: int | None = None
    total_dataset_rows: int | None = None
    sample_seed: int | None = None
    sandbox: str | None = None
    """How the workers that may run it isolate rollouts; None: no worker is there."""


class StoppingRun(SubmittedRun):
    stop_requested: bool


class RetriedRun(Body):
    id: str | None = None
    name: str | None = None
    status: str | None = None
    workflow_id: str | None = None
    retryable_samples: int | None = None
    """Rollouts that run again; 0: the whole run, from the start."""
    platform_url: str | None = None


class RunFile(Body):
    path: str
    size: int | None = None
    token: str | None = None


class FileTotals(Body):
    files: int
    bytes: int


class RunFiles(Body):
    files: Annotated[list[RunFile], OrEmpty] = Field(default_factory=list)
    totals: FileTotals | None = None


class WantedFile(RequestBody):
    path: str
    token: str | None = None


class WantedFiles(RequestBody):
    items: list[WantedFile]


class FileAddress(Body):
    path: str
    url: str | None = Field(None, validation_alias=AliasChoices("url", "presignedUrl", "presigned_url"))
    token: str | None = None


class FileAddresses(Body):
    items: Annotated[list[FileAddress], OrEmpty] = Field(
        default_factory=list, validation_alias=AliasChoices("items", "files", "urls")
    )
    expires_in: int | None = None
    """Seconds."""


class RolloutRow(Body):
    rollout_id: str
    row_index: int
    attempt: int
    step: int = 0
    status: str
    reward: float | None = None
    tokens: int | None = None
    duration_ms: float | None = None
    failure_category: str | None = None
    created_at: Moment | None = None


class RolloutPage(Page[RolloutRow]):
    rows_key = "rollouts"
    rollouts: Annotated[list[RolloutRow], OrEmpty] = Field(default_factory=list)


class RunOutcome(Body, Rollout): ...


class OutcomePage(Page[RunOutcome]):
    rows_key = "outcomes"
    outcomes: Annotated[list[RunOutcome], OrEmpty] = Field(default_factory=list)


RunPage = Page[RunRow]


class EvalRunRow(RunRow):
    model: NamedRef | None = None
    dataset: NamedRef | None = None
    rollout: NamedRef | None = None
    results: RunResults | None = None
    config: JsonObject | None = None


class EvalRunPage(Page[EvalRunRow]):
    rows_key = "eval_runs"
    eval_runs: Annotated[list[EvalRunRow], OrEmpty] = Field(default_factory=list)


class EvalRunDetail(RunDetail):
    kind: ClassVar[RunKind] = "eval"
    eval_run: EvalRunRow

    @property
    def run(self) -> EvalRunRow:
        return self.eval_run

    @property
    def figures(self) -> RunResults:
        return self.results or self.eval_run.results or RunResults()


class EvalOverview(Body):
    duration_ms: float | None = None
    total_samples: int | None = None
    completed_samples: int | None = None
    graded: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    pass_rate: float | None = None
    pass_threshold: float | None = None
    tokens_used: int | None = None


class PassAtKPoint(Body):
    k: int
    value: float | None = None


class EvalMetrics(Body):
    status: str | None = None
    overview: EvalOverview | None = None
    reward_stats: RewardStats | None = None
    pass_at_k: Annotated[list[PassAtKPoint], OrEmpty] = Field(default_factory=list)
    report: RunReport = None
    progress: RunProgress | None = None


Rows = Annotated[list[JsonObject], OrEmpty]


# A row of an agent has `agent_index`, `harness`, `model`, `status`, the `id` and `run_name` of its evaluation, and with
# figures also `rank`, `n_tasks`, `pass_at_1` (with the bounds `low` and `high`), `pass_at_k` and means of an attempt.
class BenchmarkPage(Page[Body]):
    """`source_ref` is the name for configs and commands."""

    rows_key = "benchmarks"
    benchmarks: Rows = Field(default_factory=list)


class BenchmarkDetail(Body):
    benchmark: JsonObject
    """As in lists, with its `tasks`: `name`, `category` and `difficulty`."""
    leaderboard: Rows = Field(default_factory=list)


class BenchmarkRunRow(RunRow):
    benchmark_name: str | None = None
    agent_count: int | None = None
    best_pass_at_1: float | None = None
    ingested_results: int | None = None
    expected_results: int | None = None


class BenchmarkRunPage(Page[BenchmarkRunRow]):
    rows_key = "benchmark_runs"
    benchmark_runs: Annotated[list[BenchmarkRunRow], OrEmpty] = Field(default_factory=list)


class BenchmarkRunDetail(RunDetail):
    kind: ClassVar[RunKind] = "benchmark"
    benchmark_run: BenchmarkRunRow
    configuration: JsonObject | None = None
    agents: Rows = Field(default_factory=list)
    """The best first."""
    agent_metrics: Rows = Field(default_factory=list)
    """Those of `agents` with figures."""

    @property
    def run(self) -> BenchmarkRunRow:
        return self.benchmark_run
