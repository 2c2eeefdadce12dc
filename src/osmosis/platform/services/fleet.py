"""Workers: who they are, which job each is given, what their word does.

Decided here for every worker alike: the platform's own calls these functions, others come by HTTP. What a worker says
of a job counts only while the job is that worker's under that lease. What nobody says is in `caretaker`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis._version import __version__
from osmosis.errors import Forbidden, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.contract.worker_bodies import (
    JobOrder,
    JobStarted,
    JobWord,
    KeptJob,
    WorkerHello,
    WorkerLeaves,
    WorkerOrders,
    WorkerRound,
    WorkerWelcome,
)
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.run import JOB_PROTOCOL, JobResult
from osmosis.records.run_kind import JobKind
from osmosis.records.run_status import RunStatus

from . import job_queue, job_specs, pace, placement, run_lifecycle, secrets, tickets

log = logging.getLogger(__name__)

LOST_AFTER_S = placement.LOST_AFTER.total_seconds()
PER_SECOND = 50
"""How many rounds of all workers together are wanted in a second, at most."""


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """What a worker showed when it came."""

    token_id: str | None
    """None: it is the platform's own."""
    workspace_id: str | None = None
    """The only workspace whose runs it may take."""

    @property
    def embedded(self) -> bool:
        return self.token_id is None


OWN = WorkerAccess(None)


def hello(platform: Platform, access: WorkerAccess, who: WorkerHello) -> WorkerWelcome:
    """Takes a worker on, new or again. The jobs of its earlier lives are its own, and get time to report."""
    with platform.db.write() as session:
        known = _earlier(session, access, who.ids)
        worker = known[0] if known else tables.Worker(id=tables.new_id(), created_at=utc_now())
        if worker.removed_at is not None:
            raise Forbidden(f"worker {worker.name!r} was removed", hint="start it again without its folder's state")
        _note(session, worker, access, who)
        session.add(worker)
        session.flush()
        jobs = _adopt(session, platform.settings, worker, [one.id for one in known])
        for other in known[1:]:
            session.delete(other)
        return WorkerWelcome(worker_id=worker.id, name=worker.name, version=__version__, note=unfit(worker), jobs=jobs)


def round_of(
    platform: Platform, access: WorkerAccess, said: WorkerRound, *, missed: Callable[[], bool] = lambda: False
) -> WorkerOrders:
    """What a worker is to end, and what to start. Forbidden for one that is not wanted any more.

    `missed` says whether its jobs may have spoken in vain of late; it is asked, outside a transaction, before one of
    them is ended for being silent.
    """
    _bridge_gap(platform, access, said)
    with platform.db.read() as session:
        worker = _mine(session, access, said.worker_id)
        ends = [end for word in said.jobs if (end := _end_of(session, platform.settings, worker, word)) is not None]
        among = None
        if (said.slots or said.places) and not worker.draining and not unfit(worker):
            among = job_queue.waiting_for(worker, others=said.slots > 0, deployments=said.places > 0)
        work = among is not None and session.scalars(among.limit(1)).first() is not None
        alive = _alive(session)
        over = run_lifecycle.over_among(session, said.kept)
        queued = _queued(session, platform.settings, worker, said.jobs)
    if any(end.silent for end in ends) and missed():
        ends = [end for end in ends if not end.silent]
    for end in ends:
        _apply(platform, end)
    tickets.keep(platform, queued)
    if utc_now() - worker.last_seen > _seen_every(platform.settings) or worker.slots != said.slots:
        with platform.db.write() as session:
            seen = sa.update(tables.Worker).where(tables.Worker.id == worker.id)
            session.execute(seen.values(last_seen=utc_now(), slots=said.slots))
    given = _give_all(platform, worker, among, said) if work else []
    return WorkerOrders(
        end=[end.word.lease_id for end in ends],
        start=given[0] if given else None,
        more=given[1:],
        drain=worker.draining,
        forget=over,
        poll_s=max(platform.settings.poll_s, alive / PER_SECOND),
    )


def started(platform: Platform, access: WorkerAccess, said: JobStarted) -> None:
    """What became of an order. The word of a worker that has lost the job meanwhile is dropped."""
    with platform.db.write() as session:
        worker = _mine(session, access, said.worker_id)
        held = _held_by(session, worker, said.job_id, said.lease_id)
        if held is None:
            return
        if said.problem:
            log.warning("run %s: %s", held.run.name, said.problem)
            most = platform.settings.max_starts
            job_queue.release(session, held, said.problem, max_starts=most, blame="executor")
            if pause := job_queue.pause(held.job, platform.settings.start_pause_s):
                run_lifecycle.log(session, held.run.id, f"the next try follows in {pause:.0f} s")
            return
        held.job.handle = said.handle
        where = "" if access.embedded else f" on {worker.name}"
        process, number = (said.handle or {}).get("pid"), (said.handle or {}).get("id")
        what = f"job started{where}" + (f" (process {process})" if process else "")
        if number is not None:
            what = f"{worker.name} gave its job to {worker.executor}, as job {number}"
        run_lifecycle.log(session, held.run.id, what)


def leave(platform: Platform, access: WorkerAccess, said: WorkerLeaves) -> None:
    """A worker ends, and has ended its jobs: they go on elsewhere."""
    with platform.db.write() as session:
        worker = _mine(session, access, said.worker_id)
        why = f"{_who(worker)} was stopped"
        worker.slots = 0
        for word in said.jobs:
            if (held := _held_by(session, worker, word.job_id, word.lease_id)) is not None:
                job_queue.release(session, held, why, max_starts=platform.settings.max_starts, blame="nobody")


def unfit(worker: tables.Worker) -> str:
    """Why a worker of this version is given no work; empty for one that is."""
    if worker.protocol == JOB_PROTOCOL:
        return ""
    return (
        f"osmosis {worker.version} speaks another job protocol ({worker.protocol}) than this platform "
        f"({JOB_PROTOCOL}, osmosis {__version__}): install osmosis-ai=={__version__} there"
    )


# --- inside ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _End:
    """A job that its worker is to end."""

    word: JobWord
    lease_hash: str
    reason: str
    """Empty when the platform does not count it as working any more."""
    silent: bool = False
    """Whether the reason is that nobody heard it."""


def _seen_every(settings: PlatformSettings) -> timedelta:
    return timedelta(seconds=min(2.0, settings.lease_s / 8))


def _bridge_gap(platform: Platform, access: WorkerAccess, said: WorkerRound) -> None:
    """A worker that was not heard for long stood still, or we did (a machine that was suspended): nobody could extend a
    lease, so each of its live jobs gets the time to do it before it counts as silent."""
    settings, now = platform.settings, utc_now()
    with platform.db.read() as session:
        worker = _mine(session, access, said.worker_id)
    still_s = (now - worker.last_seen).total_seconds()
    if still_s < max(settings.lease_s / 4, 4 * settings.poll_s):
        return
    with platform.db.write() as session:
        for word in said.jobs:
            held = _held_by(session, worker, word.job_id, word.lease_id) if word.alive else None
            if held is not None and held.job.lease_until is not None and held.job.lease_until < now:
                job_queue.extend(held.job, settings.lease_s)
                run_lifecycle.log(
                    session, held.run.id, f"{_who(worker)} was suspended for {still_s:.0f} s; the job continues"
                )


def _who(worker: tables.Worker) -> str:
    return "the platform" if worker.embedded else "its worker"


def _end_of(session: Session, settings: PlatformSettings, worker: tables.Worker, word: JobWord) -> _End | None:
    """None for a job that works as it should."""
    held = _held_by(session, worker, word.job_id, word.lease_id)
    if held is None:
        return _End(word, "", "")
    job, run, now = held.job, held.run, utc_now()
    reason, silent = "", False
    if not word.alive:
        reason = _obituary(word)
    elif tickets.waits(job) and (why := tickets.why_over(run, job)):
        reason = why
    elif run.stop_requested_at is not None and _overdue(session, settings, run, now):
        reason = "the job did not stop in time and was killed"
    elif job.lease_until is not None and job.lease_until < now:
        reason, silent = f"the job sent no heartbeat for {settings.lease_s:g} s and was killed", True
    return _End(word, job.lease_hash or "", reason, silent) if reason else None


def _apply(platform: Platform, end: _End) -> None:
    if not end.reason:
        return
    with platform.db.write() as session:
        if (held := job_queue.held(session, end.word.job_id, end.lease_hash)) is not None:
            log.info("run %s: %s", held.run.name, end.reason)
            if end.word.cause == "final" and held.run.stop_requested_at is None:
                failure = Failure(
                    phase=Phase.SETUP,
                    category=Category.SERVER_DIED,
                    message=end.reason,
                    fix="what is stored is kept: change what is said above, then retry the run",
                )
                run_lifecycle.end(session, held.run, JobResult(status=RunStatus.FAILED, failure=failure), "")
                return
            blame: job_queue.Blame = "executor" if end.word.cause == "machine" else "job"
            job_queue.release(session, held, end.reason, max_starts=platform.settings.max_starts, blame=blame)


def _queued(
    session: Session, settings: PlatformSettings, worker: tables.Worker, words: Sequence[JobWord]
) -> list[tuple[str, str, str]]:
    """The jobs that wait in a scheduler, as far as there is something to note."""
    found = []
    for word in words:
        held = _held_by(session, worker, word.job_id, word.lease_id) if word.alive else None
        if held is not None and tickets.is_news(held.job, word.place, settings.lease_s):
            found.append((word.job_id, word.lease_id, word.place))
    return found


def _overdue(session: Session, settings: PlatformSettings, run: tables.Run, now: datetime) -> bool:
    grace_s = settings.training_stop_grace_s if run.kind == "training" else settings.stop_grace_s
    heard = timedelta(seconds=grace_s + pace.every_s(session))
    return run.stop_requested_at is not None and now - run.stop_requested_at > heard


def _obituary(word: JobWord) -> str:
    how = f"ended with exit code {word.exit_code}" if word.exit_code is not None else "is gone"
    why = word.reason or f"the job {how} without a result"
    return why + (f"; its last output:\n{word.words}" if word.words else "")


def _give_all(
    platform: Platform, worker: tables.Worker, among: sa.Select[tables.Job] | None, said: WorkerRound
) -> list[JobOrder]:
    """At most one job; of a run in shards as many as there are slots for, where the executor starts them together."""
    first = _give(platform, worker, among, said.queue_s)
    given = [first] if first is not None else []
    while first is not None and among is not None and worker.executor != job_queue.LOCAL and len(given) < said.slots:
        more = _give(platform, worker, among.where(tables.Job.run_id == first.run_id), said.queue_s)
        if more is None:
            break
        given.append(more)
    return given


def _give(
    platform: Platform, worker: tables.Worker, among: sa.Select[tables.Job] | None, queue_s: float
) -> JobOrder | None:
    with platform.db.write() as session:
        claimed = job_queue.claim(session, worker, platform.settings.lease_s, among)
        if claimed is None:
            return None
        log.info("run %s: claimed by %s", claimed.run.name, worker.name)
        if not _can_start(platform, session, claimed):
            return None
        return JobOrder(
            job_id=claimed.job.id,
            lease_id=_lease_id(claimed.job),
            run_id=claimed.run.id,
            run_name=claimed.run.name,
            kind=kind_of(claimed.run),
            folder=job_specs.folder_of(claimed.run, claimed.job),
            lease=claimed.token if worker.executor == job_queue.LOCAL else "",
            ticket="" if worker.executor == job_queue.LOCAL else tickets.issue(claimed.job, queue_s),
            needs=placement.needs_of(claimed.run),
        )


def kind_of(run: tables.Run) -> JobKind:
    """What its jobs do."""
    kinds: tuple[JobKind, ...] = ("training", run_lifecycle.SERVING, run_lifecycle.MERGE)
    return next((kind for kind in kinds if kind == run.kind), "eval")


def _can_start(platform: Platform, session: Session, claimed: job_queue.Claimed) -> bool:
    """Whether what the job needs is there. A run that cannot be started at all has failed, and says why."""
    try:
        job_specs.spec_of(session, platform.settings, claimed.job)
        secrets.values_for_run(session, platform.vault, claimed.run)
        return True
    except OsmosisError as error:
        problem = error
    except ValueError as error:  # what an earlier version stored
        problem = OsmosisError(f"this run cannot be started: {error}", hint="submit it again")
    failure = Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=problem.message, fix=problem.hint)
    run_lifecycle.end(session, claimed.run, JobResult(status=RunStatus.FAILED, failure=failure), problem.message)
    return False


def _lease_id(job: tables.Job) -> str:
    """Which lease of a job is meant, without saying it."""
    return job.lease_id or ""


def _held_by(session: Session, worker: tables.Worker, job_id: str, lease_id: str) -> job_queue.HeldJob | None:
    job = session.get(tables.Job, job_id)
    if job is None or job.state != QueueState.HELD or job.worker_id != worker.id or _lease_id(job) != lease_id:
        return None
    return job_queue.HeldJob(session.get_one(tables.Run, job.run_id), job)


def _earlier(session: Session, access: WorkerAccess, ids: Sequence[str]) -> list[tables.Worker]:
    """The rows of these ids, in their order, as far as they are this worker's to take."""
    rows = {row.id: row for row in session.scalars(sa.select(tables.Worker).where(tables.Worker.id.in_(ids[:100])))}
    found = [rows[one] for one in ids if one in rows]
    return [row for row in found if row.embedded == access.embedded and row.workspace_id == access.workspace_id]


def _note(session: Session, worker: tables.Worker, access: WorkerAccess, who: WorkerHello) -> None:
    worker.name = _free_name(session, worker, who.name)
    worker.token_id, worker.workspace_id, worker.embedded = access.token_id, access.workspace_id, access.embedded
    worker.machine, worker.version, worker.protocol = who.machine, who.version, who.protocol
    worker.executor, worker.kinds, worker.max_jobs = who.executor, list(who.kinds), who.max_jobs
    worker.labels, worker.resources, worker.sandbox = who.labels, who.resources.to_dict(), who.sandbox
    worker.draining, worker.slots, worker.last_seen = False, 0, utc_now()


def _free_name(session: Session, worker: tables.Worker, wanted: str) -> str:
    """As it asks, with a number where another worker that is not lost has the name."""
    since = utc_now() - timedelta(seconds=LOST_AFTER_S)
    query = sa.select(tables.Worker.name).where(
        tables.Worker.id != worker.id, tables.Worker.removed_at.is_(None), tables.Worker.last_seen > since
    )
    taken, name, number = set(session.scalars(query)), wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def _adopt(session: Session, settings: PlatformSettings, worker: tables.Worker, ids: Sequence[str]) -> list[KeptJob]:
    """Jobs of its earlier lives. One that was never started goes back to the queue."""
    kept = []
    for job in held_jobs(session, ids):
        run = session.get_one(tables.Run, job.run_id)
        if job.handle is None:
            why = "its worker was ended before it was started"
            job_queue.release(session, job_queue.HeldJob(run, job), why, max_starts=settings.max_starts, blame="nobody")
            continue
        job.worker_id, job.worker = worker.id, worker.name
        job_queue.extend(job, settings.lease_s)
        run_lifecycle.log(session, run.id, f"{_who(worker)} was restarted; the job continues")
        kept.append(
            KeptJob(job_id=job.id, lease_id=_lease_id(job), run_name=run.name, kind=kind_of(run), handle=job.handle)
        )
    return kept


def held_jobs(session: Session, ids: Sequence[str]) -> list[tables.Job]:
    """The jobs that these workers have."""
    query = sa.select(tables.Job).where(tables.Job.worker_id.in_(ids), tables.Job.state == QueueState.HELD)
    return list(session.scalars(query))


def _mine(session: Session, access: WorkerAccess, worker_id: str) -> tables.Worker:
    worker = session.get(tables.Worker, worker_id)
    if worker is None or worker.removed_at is not None:
        raise Forbidden("this worker was removed", hint="start it again: osmosis worker start")
    if worker.embedded != access.embedded or worker.workspace_id != access.workspace_id:
        raise Forbidden("this is another worker's id")
    return worker


def _alive(session: Session) -> int:
    since = utc_now() - timedelta(seconds=LOST_AFTER_S)
    return count_of(session, sa.select(tables.Worker).where(tables.Worker.last_seen > since))
