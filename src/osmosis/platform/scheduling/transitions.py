"""The states of a job and what moves it between them: the only place that sets a job's state."""

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from osmosis.errors import InternalError
from osmosis.platform import tables
from osmosis.records.run.status import RunStatus

WAITING, HELD, OVER = tables.QueueState.WAITING, tables.QueueState.HELD, tables.QueueState.OVER
Event = Literal["claim", "release", "finish", "skip", "close"]
TRANSITIONS: Mapping[tuple[str, Event], str] = {
    (WAITING, "claim"): HELD,
    (HELD, "release"): WAITING,
    (HELD, "finish"): OVER,
    (WAITING, "skip"): OVER,
    (WAITING, "close"): OVER,  # its run is over
    (HELD, "close"): OVER,
    (OVER, "close"): OVER,
}
CLEARED: Mapping[Event, tuple[str, ...]] = {
    "claim": ("handle", "secrets_taker", "ticket_hash", "ticket_until", "ticket_taker", "place"),
    "release": ("lease_id", "lease_hash", "lease_until", "handle", "ticket_hash", "place"),
    # The hash of the lease stays: a last message that is repeated is still known.
    "finish": ("lease_until", "handle"),
    "skip": (),
    "close": ("lease_until", "handle"),
}


def change_state(job: tables.Job, event: Event) -> None:
    state = TRANSITIONS.get((job.state, event))
    if state is None:
        raise InternalError(f"job {job.id} is {job.state}, it cannot {event}")
    job.state = state
    for column in CLEARED[event]:
        setattr(job, column, None)


def skip(job: tables.Job) -> None:
    change_state(job, "skip")
    job.status = RunStatus.STOPPED.value


class Loss(Enum):
    EXITED = "its process ended"
    SILENT = "it sent no heartbeat"
    MACHINE_LOST = "its machine was lost"
    SCHEDULER_ENDED = "its scheduler ended it"
    START_REFUSED = "its executor could not start it"
    WORKER_LOST = "its worker is lost"
    WORKER_STOPPED = "its worker was stopped"
    WORKER_REMOVED = "its worker was removed"
    NEVER_STARTED = "its worker ended before it was started"
    INTERRUPTED = "it was interrupted"


Blame = Literal["job", "executor", "nobody"]
BLAME: Mapping[Loss, Blame] = {
    Loss.EXITED: "job",
    Loss.SILENT: "job",
    Loss.MACHINE_LOST: "executor",
    Loss.SCHEDULER_ENDED: "executor",
    Loss.START_REFUSED: "executor",
    Loss.WORKER_LOST: "executor",
    Loss.WORKER_STOPPED: "nobody",
    Loss.WORKER_REMOVED: "nobody",
    Loss.NEVER_STARTED: "nobody",
    Loss.INTERRUPTED: "nobody",
}
"""A job to blame loses one of its starts; one whose executor is, is given up after as many losses in a row."""


def count_loss(job: tables.Job, loss: Loss) -> None:
    blame = BLAME[loss]
    if blame != "job":
        job.starts = max(0, job.starts - 1)
    if blame == "executor":
        job.lost += 1


def explain_giving_up(job: tables.Job, max_starts: int) -> str:
    if job.starts >= max_starts:
        return f"the job ended {job.starts} times in a row before anything was stored"
    if job.lost >= max_starts:
        return f"its machine or executor failed {job.lost} times in a row before anything was stored"
    return ""
