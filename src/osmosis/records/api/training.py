from typing import Annotated, ClassVar, Literal

from pydantic import Field

from osmosis.records.api.body import Body, Moment, OrEmpty, Page, RequestBody
from osmosis.records.api.datasets import UploadPlan
from osmosis.records.api.runs import NamedRef, RunDetail, RunRow
from osmosis.records.run.status import RunKind


class ModelRef(Body):
    id: str | None = None
    model_name: str | None = None


class FileRef(Body):
    id: str | None = None
    file_name: str | None = None


class TrainingRunRow(RunRow):
    model: ModelRef | None = None
    dataset: FileRef | None = None
    rollout: NamedRef | None = None
    current_step: int | None = None
    total_steps: int | None = None
    reward: float | None = None
    """Mean reward of the last step's rollouts."""
    validation_reward: float | None = None
    """Mean reward at the last validation."""


class TrainingRunPage(Page[TrainingRunRow]):
    rows_key = "training_runs"
    training_runs: Annotated[list[TrainingRunRow], OrEmpty] = Field(default_factory=list)


class TrainingRunDetail(RunDetail):
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
    training_run_id: str | None = None
    """Read by clients of generation 0.2 only."""
    status: str | None = None
    overview: TrainingOverview | None = None
    metrics: Annotated[list[Curve], OrEmpty] = Field(default_factory=list)

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        points = {curve.metric_key: curve.data_points for curve in self.metrics}
        return {key: [(p.step, p.value) for p in points[key] if p.value is not None] for key in points}


class GateFinding(Body):
    code: str
    severity: str
    """`error` (nothing could be learned), `warning` or `info`."""
    what: str
    fix: str = ""


class CheckedEnvironment(Body):
    """One of several: what it has of the run."""

    name: str
    share: float
    """Part of the rows of a step, and of the validation reward, from 0 to 1."""
    rows: int
    validation_rows: int
    test_rows: int
    passes: float
    """How often each of its rows for training comes, on average."""


class TrainingCheck(Body):
    """`POST training-runs/check`: what a config amounts to. Shares are of rollouts; `no_signal` is of rows."""

    eval_run: str | None = None
    """The evaluation that was read; None when there is none of this rollout and dataset."""
    eval_model: str | None = None
    examples: int | None = None
    """For `method = "sft"` or `"dpo"`: number of rollouts of that run, or pairs of them, that it learns from."""
    steps: int = 0
    training_rows: int = 0
    validation_rows: int = 0
    environments: Annotated[list[CheckedEnvironment], OrEmpty] = Field(default_factory=list)
    """Empty with a single one."""
    rollouts_per_step: int = 0
    total_rollouts: int = 0
    replacement_rollouts: int = 0
    """At most so many more, in place of rows without signal (`replace_no_signal`)."""
    tried_rollouts: int = 0
    tried_groups: int = 0
    no_signal: float | None = None
    signal: float | None = None
    """Share of the training's groups whose rewards will differ, and its 95 % interval."""
    signal_ci: tuple[float, float] | None = None
    mean_reward: float | None = None
    failed: float | None = None
    truncated: float | None = None
    p95_s: float | None = None
    least_s: float | None = None
    """Seconds of all steps' rollouts, if those of a step run in parallel."""
    findings: Annotated[list[GateFinding], OrEmpty] = Field(default_factory=list)

    @property
    def hopeless(self) -> list[GateFinding]:
        return [finding for finding in self.findings if finding.severity == "error"]


class CheckpointRow(Body):
    id: str | None = None
    checkpoint_step: int | None = None
    status: str | None = None
    checkpoint_name: str | None = None
    reward: float | None = None
    best: bool | None = None
    """Its reward is the highest, the latest of equal ones: the model that the run's name stands for."""
    created_at: Moment | None = None


class CheckpointList(Body):
    training_run_id: str | None = None
    """Read by clients of generation 0.2 only."""
    training_run_name: str | None = None
    checkpoints: Annotated[list[CheckpointRow], OrEmpty] = Field(default_factory=list)


class TrainedRows(Body):
    rows: Annotated[list[str], OrEmpty] = Field(default_factory=list)
    """Keys of the rows that an evaluation's model was trained on."""


class ModelRow(Body):
    id: str | None = None
    model_name: str | None = None
    base_model: str | None = None
    training_run_name: str | None = None
    """Run of an adapter, like the two below."""
    checkpoint_step: int | None = None
    reward: float | None = None
    tune: str | None = None
    """`lora` for an adapter, `full` for a checkpoint that is a whole model."""
    status: str | None = None
    """`ready`, or `uploading` for a base model that waits for files; of an adapter as its checkpoint."""
    architecture: str | None = None
    """Architecture of a base model, like the four below."""
    parameters: int | None = None
    context_window: int | None = None
    chat_template: bool | None = None
    size: int | None = None
    deployment_status: str | None = None
    """`active` (served, or about to be) or `inactive`; None where it is unknown."""
    deployment_state: str | None = None
    """`starting`, `serving`, `stopping`, `stopped` or `failed`; None: never deployed."""
    deployment_message: str | None = None
    deployed_at: Moment | None = None
    deployed_by: str | None = None
    inference_model: str | None = None
    """Name in chat completions."""
    inference_url: str | None = None
    """Base URL for an OpenAI client."""
    platform_url: str | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None


class ModelPage(Page[ModelRow]):
    rows_key = "models"
    models: Annotated[list[ModelRow], OrEmpty] = Field(default_factory=list)
    active_deployments: int | None = None
    max_active_deployments: int | None = None


class ModelDeployment(Body):
    id: str | None = None
    model_name: str | None = None
    base_model: str | None = None
    status: str | None = None
    state: str | None = None
    message: str | None = None
    deployed_at: Moment | None = None


class DeploymentPage(Page[ModelDeployment]):
    rows_key = "deployments"
    deployments: Annotated[list[ModelDeployment], OrEmpty] = Field(default_factory=list)
    active_deployments: int | None = None
    max_active_deployments: int | None = None


class WrappedDeployment(Body):
    """The form that clients of generation 0.2 read."""

    deployment: ModelDeployment


class AnnouncedFile(RequestBody):
    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewModel(RequestBody):
    name: str
    files: list[AnnouncedFile] = Field(max_length=1000)


class MergeRequest(RequestBody):
    name: str | None = None
    """Name of the new model; None: the adapter's, with `-merged`."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Type of the weights; `auto`: the base model's."""


class ModelMerge(Body):
    id: str | None = None
    model_name: str | None = None
    merged_from: str | None = None
    status: str | None = None
    stage: str | None = None
    message: str | None = None
    fix: str | None = None


class ModelPath(RequestBody):
    path: str


class ModelFile(Body):
    path: str
    size: int
    sha256: str | None = None
    state: str | None = None
    parts: Annotated[list[int], OrEmpty] = Field(default_factory=list)
    """Numbers of the parts that arrived, of a pending file."""
    url: str | None = None


class ModelUpload(Body):
    id: str
    name: str
    status: str
    part_size: int
    """Bytes of every part but the last."""
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)

    @property
    def pending(self) -> list[ModelFile]:
        return [file for file in self.files if file.state != "uploaded"]

    @property
    def missing_bytes(self) -> int:
        return sum(max(0, file.size - len(file.parts) * self.part_size) for file in self.pending)


class ModelFileUpload(Body):
    """Addresses of the next missing parts of a file; none when it can be completed."""

    path: str
    upload: UploadPlan


class ModelFiles(Body):
    name: str
    type: str
    base_model: str | None = None
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)
