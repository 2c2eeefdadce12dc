"""Training runs: list row, detail, curves, checkpoints, and the models that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from osmosis.base.json_types import JsonObject
from osmosis.records.run_kind import RunKind

from .body import Body, Moment, OrEmpty, Page
from .run_bodies import NamedRef, RunDetail, RunPage, RunRow


class ModelRef(Body):
    """The model a training run starts from, as lists name it."""

    id: str | None = None
    model_name: str | None = None


class FileRef(Body):
    """The dataset of a training run, as lists name it."""

    id: str | None = None
    file_name: str | None = None


class TrainingRunRow(RunRow):
    """A training run in a list."""

    model: ModelRef | None = None
    dataset: FileRef | None = None
    rollout: NamedRef | None = None
    current_step: int | None = None
    total_steps: int | None = None
    reward: float | None = None


class TrainingRunPage(RunPage):
    training_runs: Annotated[list[TrainingRunRow], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[TrainingRunRow]:
        return self.training_runs


class TrainingRunDetail(RunDetail):
    """A training run, whole."""

    kind: ClassVar[RunKind] = "training"
    training_run: TrainingRunRow
    model: NamedRef | None = None
    examples_processed_count: int | None = None
    notes: str | None = None

    @property
    def run(self) -> TrainingRunRow:
        return self.training_run


class CurvePoint(Body):
    step: int
    value: float | None = None
    timestamp: int | None = None
    """Milliseconds since 1970."""


class Curve(Body):
    metric_key: str
    title: str | None = None
    data_points: Annotated[list[CurvePoint], OrEmpty] = Field(default_factory=list)


class CurveSummary(Body):
    """A curve in one line."""

    key: str
    title: str | None = None
    initial: float | None = None
    latest: float | None = None
    delta: float | None = None
    min: float | None = None
    max: float | None = None


class TrainingOverview(Body):
    duration_ms: float | None = None
    metric_summaries: Annotated[list[CurveSummary], OrEmpty] = Field(default_factory=list)
    examples_processed_count: int | None = None
    latest_step: int | None = None
    total_steps: int | None = None


class TrainingMetrics(Body):
    """`training-runs/{name}/metrics`."""

    training_run_id: str | None = None
    """Read by clients of generation 0.2 only."""
    status: str | None = None
    overview: TrainingOverview | None = None
    metrics: Annotated[list[Curve], OrEmpty] = Field(default_factory=list)


class GateFinding(Body):
    """Something to know before training."""

    code: str
    severity: str
    """`error` (nothing could be learned), `warning` or `info`."""
    what: str
    fix: str = ""


class TrainingCheck(Body):
    """`POST training-runs/check`: what a config comes to, and what an evaluation says about it. Shares are of
    rollouts; `no_signal` is of rows."""

    eval_run: str | None = None
    """The evaluation that was read; None when there is none of this rollout and dataset."""
    eval_model: str | None = None
    examples: int | None = None
    """Of `method = "sft"`: how many rollouts of that run are learned from."""
    steps: int = 0
    training_rows: int = 0
    validation_rows: int = 0
    rollouts_per_step: int = 0
    total_rollouts: int = 0
    tried_rollouts: int = 0
    tried_groups: int = 0
    no_signal: float | None = None
    mean_reward: float | None = None
    failed: float | None = None
    truncated: float | None = None
    p95_s: float | None = None
    least_s: float | None = None
    """Rollouts of all steps, if those of a step really run side by side."""
    findings: Annotated[list[GateFinding], OrEmpty] = Field(default_factory=list)

    @property
    def hopeless(self) -> list[GateFinding]:
        """Why nothing could be learned."""
        return [finding for finding in self.findings if finding.severity == "error"]


class CheckpointRow(Body):
    id: str | None = None
    checkpoint_step: int | None = None
    status: str | None = None
    checkpoint_name: str | None = None
    created_at: Moment | None = None


class CheckpointList(Body):
    """`training-runs/{name}/checkpoints`."""

    training_run_id: str | None = None
    """Read by clients of generation 0.2 only."""
    training_run_name: str | None = None
    checkpoints: Annotated[list[CheckpointRow], OrEmpty] = Field(default_factory=list)


class ModelRow(Body):
    """A base model, or an adapter that a training run made."""

    id: str | None = None
    model_name: str | None = None
    base_model: str | None = None
    training_run_name: str | None = None
    """Of an adapter, like the two below."""
    checkpoint_step: int | None = None
    reward: float | None = None
    status: str | None = None
    """`ready`, or `uploading` for a base model that waits for files; of an adapter as its checkpoint."""
    architecture: str | None = None
    """Of a base model, like the four below."""
    parameters: int | None = None
    context_window: int | None = None
    chat_template: bool | None = None
    size: int | None = None
    """Bytes."""
    deployment_status: str | None = None
    """`active` (served, or about to be) or `inactive`; None where nothing is known of it."""
    deployment_state: str | None = None
    """`starting`, `serving`, `stopping`, `stopped` or `failed`; None: never deployed."""
    deployment_message: str | None = None
    """Why it failed."""
    deployed_at: Moment | None = None
    deployed_by: str | None = None
    inference_model: str | None = None
    """As chat completions name it."""
    inference_url: str | None = None
    """Where they are asked: the base URL of an OpenAI client."""
    platform_url: str | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None


class ModelPage(Page):
    models: Annotated[list[ModelRow], OrEmpty] = Field(default_factory=list)
    active_deployments: int | None = None
    max_active_deployments: int | None = None

    @property
    def rows(self) -> Sequence[ModelRow]:
        return self.models


class ModelDeployment(Body):
    """The answer of deploying or undeploying a model."""

    id: str | None = None
    """Of the model."""
    model_name: str | None = None
    base_model: str | None = None
    status: str | None = None
    """`active` or `inactive`."""
    state: str | None = None
    """`starting`, `serving`, `stopping`, `stopped` or `failed`."""
    message: str | None = None
    """Why it failed."""
    deployed_at: Moment | None = None


class DeploymentPage(Page):
    """Models that are deployed."""

    deployments: Annotated[list[ModelDeployment], OrEmpty] = Field(default_factory=list)
    active_deployments: int | None = None
    max_active_deployments: int | None = None


class WrappedDeployment(Body):
    """What clients of generation 0.2 read."""

    deployment: ModelDeployment


class BenchmarkPage(Page):
    """There is none here."""

    benchmarks: Annotated[list[JsonObject], OrEmpty] = Field(default_factory=list)


class BenchmarkRunPage(Page):
    """There is none here."""

    benchmark_runs: Annotated[list[JsonObject], OrEmpty] = Field(default_factory=list)
