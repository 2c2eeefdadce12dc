"""What a worker and the platform say to each other: `/api/workers/...`.

A worker says hello once, then in rounds how its jobs are, and is told which to end and which to start. What a job
itself says is in `job_messages`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from osmosis.records.run_kind import JobKind
from osmosis.records.worker import ResourceNeeds, Resources

from .body import Body, Moment, RequestBody

QUEUE_S = 86_400.0


class WorkerHello(RequestBody):
    """Who it is and what it can do."""

    name: str = Field(min_length=1, max_length=100)
    machine: str
    """Which machine it is on, since that machine's last start."""
    version: str
    protocol: int
    """`records.run.JOB_PROTOCOL` of the worker."""
    kinds: list[JobKind]
    max_jobs: int = Field(ge=1)
    executor: str = "local"
    labels: dict[str, str] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    sandbox: str = ""
    """What keeps rollouts from this machine, in words."""
    ids: list[str] = Field(default_factory=list)
    """Under which it, or another worker of its folder that is gone, was known before: their jobs are its own now."""


class KeptJob(Body):
    """A job of an earlier life of the worker."""

    job_id: str
    lease_id: str
    run_name: str
    kind: JobKind
    handle: dict[str, object]


class WorkerWelcome(Body):
    worker_id: str
    name: str
    """As the platform calls it: with a number where another worker has the name."""
    version: str
    """Of the platform."""
    note: str = ""
    """Why it is given no work, when it is not."""
    jobs: list[KeptJob] = Field(default_factory=list)


JobEndCause = Literal["died", "machine", "final"]
"""Why a job is gone without a result: by itself; with its machine, which costs the run none of its starts; or so that
another start would end the same way, or is not wanted."""


class JobWord(RequestBody):
    """How a job of the worker is."""

    job_id: str
    lease_id: str
    alive: bool
    exit_code: int | None = None
    words: str = ""
    """The end of what it printed, once it is gone."""
    place: str = ""
    """Where it waits to begin: `queued in slurm as job 42 (Resources)`."""
    reason: str = ""
    """Why it is gone, where the executor knows: `slurm ended job 42: it needed more memory than it asked for`."""
    cause: JobEndCause = "died"


class WorkerRound(RequestBody):
    """What a worker says, again and again."""

    worker_id: str
    jobs: list[JobWord] = Field(default_factory=list)
    slots: int = Field(ge=0)
    """How many more jobs it would take."""
    places: int = Field(default=0, ge=0)
    """How many more models it would serve: a deployment lasts, and takes no job's place."""
    queue_s: float = Field(default=QUEUE_S, gt=0, le=30 * QUEUE_S)
    """How long a job may wait in its scheduler: its ticket is good until then."""
    kept: list[str] = Field(default_factory=list)
    """Runs of which it has folders and no job."""


class JobOrder(Body):
    """A job for the worker. The lease is secret: it goes to the job's standard input and nowhere else. A worker whose
    executor is not `local` gets a ticket instead, which the job changes for the lease."""

    job_id: str
    lease_id: str
    """Which life of the job this is; no secret."""
    run_id: str
    run_name: str
    kind: JobKind
    folder: str
    """Where the job works, below the worker's folder of runs."""
    lease: str = Field(default="", repr=False)
    ticket: str = Field(default="", repr=False)
    needs: ResourceNeeds = Field(default_factory=ResourceNeeds)


class WorkerOrders(Body):
    end: list[str] = Field(default_factory=list)
    """Lease ids of jobs that are to be killed: nobody waits for them any more."""
    start: JobOrder | None = None
    more: list[JobOrder] = Field(default_factory=list)
    """Other shards of the same run, for an executor that starts them together."""
    drain: bool = False
    """It gets no more work; when its jobs are over it may go."""
    forget: list[str] = Field(default_factory=list)
    """Runs whose folders are not needed any more."""
    poll_s: float = 1.0
    """When to ask again."""


class JobStarted(RequestBody):
    """What became of an order."""

    worker_id: str
    job_id: str
    lease_id: str
    handle: dict[str, object] | None = None
    problem: str = ""
    """Why it could not be started; then it is tried again like a job that died, here or elsewhere."""


class WorkerRow(Body):
    """A worker as people see it."""

    id: str
    name: str
    state: str
    """`idle`, `working`, `draining`, `lost` (not seen for a minute) or `unfit` (`note` says why it gets no work)."""
    note: str = ""
    workspace: str | None = None
    """The only one whose runs it takes; None: all."""
    embedded: bool = False
    """The platform's own."""
    executor: str = ""
    version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    kinds: list[str] = Field(default_factory=list)
    max_jobs: int = 0
    runs: list[str] = Field(default_factory=list)
    """Names of those it works on."""
    sandbox: str = ""
    last_seen: Moment | None = None
    created_at: Moment | None = None


class WorkerList(Body):
    workers: list[WorkerRow]


class WorkerRemoved(Body):
    released: int
    """How many jobs it had, which go elsewhere."""


class WorkerLeaves(RequestBody):
    """It ends, and with it the jobs that it named: they go on elsewhere, and that start does not count."""

    worker_id: str
    jobs: list[JobWord] = Field(default_factory=list)
