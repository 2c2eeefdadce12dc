"""Messages between workers, which report their jobs in rounds, jobs and the platform; and external servers."""

from typing import Literal

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, Moment, Page, RequestBody
from osmosis.records.api.training import AnnouncedFile
from osmosis.records.config.worker import QUEUE_S, ResourceNeeds, Resources
from osmosis.records.run.job import CheckpointReport, LogLine, MetricPoint
from osmosis.records.run.rollout import Message
from osmosis.records.run.rows import Key
from osmosis.records.run.status import JobKind


class WorkerHello(RequestBody):
    name: str = Field(min_length=1, max_length=100)
    machine: str
    version: str
    protocol: int
    kinds: list[JobKind]
    max_jobs: int = Field(ge=1)
    executor: str = "local"
    labels: dict[str, str] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    sandbox: str = ""
    ids: list[str] = Field(default_factory=list)
    """Earlier ids of it, or of workers of its folder that are gone: it adopts their jobs."""


class KeptJob(Body):
    job_id: str
    lease_id: str
    run_name: str
    kind: JobKind
    handle: dict[str, object]


class WorkerWelcome(Body):
    worker_id: str
    name: str
    """Name on the platform: with a number where another worker has the name."""
    version: str
    note: str = ""
    jobs: list[KeptJob] = Field(default_factory=list)


JobEndCause = Literal["died", "machine", "final"]
"""Why a job ended without a result: by itself; with its machine, which costs the run none of its starts; or in a way
that another start would repeat, or that was intended.
"""


class JobWord(RequestBody):
    job_id: str
    lease_id: str
    alive: bool
    exit_code: int | None = None
    words: str = ""
    place: str = ""
    """Its queue before it starts: `queued in slurm as job 42 (Resources)`."""
    reason: str = ""
    """Why it ended, where the executor knows: `slurm ended job 42: it needed more memory than it asked for`."""
    cause: JobEndCause = "died"


class WorkerRound(RequestBody):
    worker_id: str
    jobs: list[JobWord] = Field(default_factory=list)
    slots: int = Field(ge=0)
    places: int = Field(default=0, ge=0)
    """Free places for deployments, which take no job's place."""
    queue_s: float = Field(default=QUEUE_S, gt=0, le=30 * QUEUE_S)
    """Seconds that a job may wait in its scheduler, while its ticket is valid."""
    kept: list[str] = Field(default_factory=list)
    """Runs of which it has folders but no job."""


class JobOrder(Body):
    """A job for the worker. The lease is secret: it goes to the job's standard input and nowhere else. An executor that
    is not `local` gets a ticket instead, which the job exchanges for the lease."""

    job_id: str
    lease_id: str
    run_id: str
    run_name: str
    kind: JobKind
    folder: str
    lease: str = Field(default="", repr=False)
    ticket: str = Field(default="", repr=False)
    needs: ResourceNeeds = Field(default_factory=ResourceNeeds)


class WorkerOrders(Body):
    end: list[str] = Field(default_factory=list)
    """Lease ids of jobs to kill."""
    start: JobOrder | None = None
    more: list[JobOrder] = Field(default_factory=list)
    """Other shards of the same run, for an executor that starts them together."""
    drain: bool = False
    forget: list[str] = Field(default_factory=list)
    poll_s: float = 1.0


class JobStarted(RequestBody):
    worker_id: str
    job_id: str
    lease_id: str
    handle: dict[str, object] | None = None
    problem: str = ""


class WorkerRow(Body):
    id: str
    name: str
    state: str
    """`idle`, `working`, `draining`, `stopped`, `lost` (not seen for a minute) or `unfit` (`note` says why)."""
    note: str = ""
    workspace: str | None = None
    """The only workspace whose runs it takes; None: all."""
    embedded: bool = False
    executor: str = ""
    version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    kinds: list[str] = Field(default_factory=list)
    max_jobs: int = 0
    runs: list[str] = Field(default_factory=list)
    sandbox: str = ""
    last_seen: Moment | None = None
    created_at: Moment | None = None


class WorkerList(Body):
    workers: list[WorkerRow]


class WorkerRemoved(Body):
    released: int


class WorkerLeaves(RequestBody):
    """The worker and these jobs end; the jobs are requeued, and the start does not count."""

    worker_id: str
    jobs: list[JobWord] = Field(default_factory=list)


class NewServer(RequestBody):
    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = Field(None, repr=False)


class RegisteredServer(Body):
    id: str
    status: str
    health_check_result: JsonObject
    """`{server_info}` of a server that answered, else `{error}`."""


class ServerStatus(Body):
    id: str
    status: str


class ServerRow(Body):
    id: str
    agent_loop_name: str
    host: str
    port: int
    status: str
    """`healthy`, `unhealthy`, or `gone` after a silence."""
    error: str | None = None
    has_api_key: bool
    scope: str
    owner_name: str | None = None
    last_seen: Moment
    created_at: Moment


class ServerPage(Page[ServerRow]):
    rows_key = "rollout_servers"
    rollout_servers: list[ServerRow] = Field(default_factory=list)


class JobClaim(RequestBody):
    """The bearer is a ticket; the response is the lease of its job."""

    run_id: str
    taker: str = Field(min_length=20, max_length=200, repr=False)
    """Random text of this process: it may ask again when the response was lost."""


class JobLease(Body):
    run_id: str
    lease: str = Field(repr=False)


class JobSecretsTaker(RequestBody):
    """A random text known to the asking process alone."""

    taker: str = Field(min_length=20, max_length=200, repr=False)


class JobSecrets(Body):
    """Given once for each lease."""

    values: dict[str, str] = Field(repr=False)


class JobArtifacts(Body):
    files: dict[str, int]


class JobArtifact(Body):
    complete: bool


class JobFile(Body):
    path: str
    size: int
    sha256: str


class JobFolder(Body):
    name: str
    """`model`, `tokenizer`, or a checkpoint: `step-000012`."""
    files: list[JobFile]
    reward: float | None = None


class JobFolders(Body):
    """The files that a training job elsewhere needs from the platform's disk or store."""

    folders: list[JobFolder]


class JobRewind(RequestBody):
    """The job resumes from the weights of a step; later rollouts lose their tokens."""

    step: int = Field(ge=-1)


class JobLogs(RequestBody):
    lines: list[LogLine]


class JobMetrics(RequestBody):
    points: list[MetricPoint]


class JobCheckpoints(RequestBody):
    checkpoints: list[CheckpointReport]


class StoredExample(Body):
    place: int
    """Cursor: ask for what comes `after` it."""
    messages: list[Message]
    tools: list[JsonObject] | None = None
    rejected: list[Message] | None = None
    """A worse rollout of the same row (`dpo`)."""


class JobModel(RequestBody):
    files: list[AnnouncedFile] = Field(max_length=1000)


class StoredKeys(Body):
    keys: list[Key]
    """`[step, row_key, attempt]` each."""


class StoredCount(Body):
    stored: int


class JobEnd(Body):
    status: str
