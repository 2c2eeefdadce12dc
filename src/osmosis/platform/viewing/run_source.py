"""A run of the database as the viewer asks for it (`viewer.source.RunSource`).

Lives as long as the session it reads from; holds what the person who looks may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.git_url import web_address
from osmosis.errors import NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import repositories
from osmosis.platform.gitsync.mirror import MirrorPlace
from osmosis.platform.services import (
    judgements,
    rollouts,
    run_bodies,
    run_lifecycle,
    run_marks,
    run_results,
    workspaces,
)
from osmosis.platform.services.audit import Actor
from osmosis.platform.services.paging import LogSlice
from osmosis.platform.services.run_tally import RunTally, tally_of
from osmosis.records import policy
from osmosis.records.annotation import Annotation
from osmosis.records.contract.body import LogPage
from osmosis.records.history import RowCount
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Report
from osmosis.records.rollout import Failure
from osmosis.records.run import MetricPoint
from osmosis.records.run_status import RunStatus
from osmosis.records.source import SnapshotNote
from osmosis.viewer import over_runs
from osmosis.viewer.code_diff import CodePair, code_pair
from osmosis.viewer.index.search import Search
from osmosis.viewer.library import RunCard
from osmosis.viewer.source import (
    LEVELS,
    Action,
    CheckpointLine,
    CodeAt,
    Fact,
    Link,
    Origin,
    RolloutTable,
    RunPlace,
    RunSettings,
    RunState,
)

from .run_feed import FILLERS, RunFeed

LOG_LINES = 200
SCOPES = {"user": "personal", "user_override": "personal, overrides the workspace's", "run": "given at submit"}
WAIT_S = 0.7
"""So long a page waits for its index to be filled; the rest follows."""


def state_of(run: tables.Run, stored: int, report: Report | None) -> RunState:
    """A run of which `stored` rollouts exist."""
    evaluation = run.config.get("evaluation", {})
    progress = run.progress or tables.StoredProgress()
    total = report.total if report else run.sampled_rows * evaluation.get("n", 1)
    if run.kind != "eval":
        stored, total = progress.get("completed", 0), progress.get("total", 0)
    return RunState(
        url=f"/runs/{run.id}",
        name=run.name,
        kind="eval" if run.kind == "eval" else "training",
        status=RunStatus(run.status),
        model=run.model_path,
        completed=stored,
        total=total,
        dataset=run.dataset,
        pass_threshold=report.pass_threshold if report else evaluation.get("pass_threshold", 1.0),
        stage=progress.get("stage", ""),
        stopping=run.stop_requested_at is not None,
        duration_ms=run_results.duration_ms(run),
        failure=Failure.model_validate(run.failure) if run.failure else None,
    )


@dataclass(frozen=True)
class DatabaseRun:
    """One run, read from the database for one page: report and state are read once."""

    session: Session
    platform: Platform
    run: tables.Run
    workspace: tables.Workspace
    role: str = "viewer"
    """Of whoever looks, in that workspace."""
    author: str | None = None
    """Who looks and may label; None where nobody does."""

    @cached_property
    def _report(self) -> Report | None:
        return run_results.report_of(self.run)

    @cached_property
    def _tally(self) -> RunTally:
        return tally_of(self.session, self.run.id)

    @cached_property
    def _state(self) -> RunState:
        state = state_of(self.run, self._tally.total, self._report)
        why = run_bodies.why_waiting(self.session, self.run)
        return replace(state, stage=why) if why else state

    def state(self) -> RunState:
        return self._state

    def place(self) -> RunPlace:
        name = self.workspace.name
        crumbs = (Link("Runs", "/"), Link(name, f"/?workspace={quote(name, safe='')}"))
        marking = f"/runs/{self.run.id}/marks" if self.author else ""
        return RunPlace(crumbs, self._actions(), author=self.author, marks=run_marks.of(self.run), marking=marking)

    def _actions(self) -> tuple[Action, ...]:
        return tuple(self._possible())

    def _possible(self) -> Iterator[Action]:
        run, url = self.run, f"/runs/{self.run.id}"
        over = RunStatus(run.status).over
        if policy.may(self.role, "run"):
            if not over:
                stopping = run.stop_requested_at is not None
                yield Action("Stopping" if stopping else "Stop", f"{url}/stop", enabled=not stopping)
            elif self._can_retry():
                help_text = "Runs failed and missing rollouts again; keeps the others"
                yield Action("Retry failed rollouts", f"{url}/retry", help_text)
        if over and policy.may(self.role, "delete"):
            yield Action("Delete", f"{url}/delete", asked=f"Delete {run.name} and everything it produced?")

    def _can_retry(self) -> bool:
        if self.run.kind != "eval" or self.run.imported is not None:
            return False
        state, report = self._state, self._report
        return state.completed < state.total or (report is not None and report.coverage < 1)

    def report(self) -> Report | None:
        return self._report

    def quarantine(self) -> RowQuarantine:
        return run_results.quarantine_of(self.run)

    def origin(self) -> Origin:
        run, imported = self.run, self.run.imported
        creator = self.session.get(tables.User, run.creator_id) if run.creator_id else None
        seed = f", drawn with seed {run.sample_seed}" if run.sample_seed is not None else ""
        of = f" of {run.dataset_rows:,}" if run.dataset_rows is not None else ""
        branch = f"on {run.branch}" if run.branch else "" if imported else "(pinned)"
        if imported and _git_of(imported).get("dirty"):
            branch = f"{branch}, with uncommitted changes".lstrip(", ")
        facts = (
            Fact("Rollout", run.rollout),
            Fact("Commit", run.commit_sha[:12] or None, code=True, help=run.commit_sha, note=branch),
            self._repository(),
            Fact("Model", run.model_path),
            self._dataset(),
            Fact("Rows", f"{run.sampled_rows:,}{of}{seed}"),
            Fact("Uploaded" if imported else "Submitted", run.created_at, note=f"by {creator.name}" if creator else ""),
        )
        snapshot = SnapshotNote.model_validate(run.snapshot) if run.snapshot is not None else None
        dirty = imported is not None and bool(_git_of(imported).get("dirty"))
        code = CodeAt(run.commit_sha, f"rollouts/{run.rollout}", dirty) if run.commit_sha else None
        events = run_lifecycle.events(self.session, run.id)
        return Origin((*facts, *self._sandbox()), events, snapshot, self._web(), code)

    def _sandbox(self) -> Iterator[Fact]:
        if words := (self.run.progress or tables.StoredProgress()).get("sandbox"):
            level, _, network = words.partition("; ")
            yield Fact("Sandbox", level, note=network)

    def _web(self) -> str:
        """Where the run's commit is read in a browser. An uploaded one may be of anywhere, a snapshot is here alone."""
        id_ = None if self.run.imported or self.run.snapshot else self.run.repository_id
        found = self.session.get(tables.Repository, id_) if id_ else None
        return web_address(found.url) if found is not None and found.kind == "external" else ""

    def _repository(self) -> Fact:
        if self.run.imported:
            name, git = self.run.imported.get("name"), _git_of(self.run.imported)
            repository = str(git.get("repository") or "none")
            return Fact("Repository", f"{repository} (made on another machine, as {name})")
        id_ = self.run.repository_id
        found = self.session.get(tables.Repository, id_) if id_ else None
        if found is None:
            return Fact("Repository", "no longer connected")
        return Fact("Repository", found.full_name, f"/{quote(self.workspace.name, safe='')}/repository")

    def _dataset(self) -> Fact:
        if self.run.dataset_id:
            return Fact("Dataset", self.run.dataset, f"/datasets/{self.run.dataset_id}")
        return Fact("Dataset", self.run.dataset, note="(a local file)" if self.run.imported else "(deleted)")

    def settings(self) -> RunSettings:
        run, imported = self.run, self.run.imported is not None
        pinned = None if imported else "none (the commit was pinned)"
        facts = [
            Fact("Commit", run.commit_sha or None, code=True),
            Fact("Branch", run.branch or pinned),
            Fact("Dataset", run.dataset, note=(run.dataset_sha256 or "")[:16]),
            Fact("Rows", row_ranges(run.rows)),
        ]
        if not imported:
            seed = str(run.sample_seed) if run.sample_seed is not None else "none (the first rows in order)"
            scopes = "; ".join(f"{name}: {SCOPES.get(scope, scope)}" for name, scope in run.secret_scopes.items())
            facts += [
                Fact("Seed", seed),
                Fact("Secrets", scopes or None),
                self._starts(),
            ]
        return RunSettings(run.config, "As run" if imported else "Pinned at submit", facts)

    def _starts(self) -> Fact:
        jobs = run_lifecycle.jobs_of(self.session, self.run.id)
        last = next((job.worker for job in jobs if job.worker), None)
        note = f"last one on {last}" if last else ""
        if len(jobs) > 1:
            states = Counter(job.state for job in jobs)
            held, over = states[tables.QueueState.HELD], states[tables.QueueState.OVER]
            note = f"{len(jobs)} shards: {held} running, {over} over, {len(jobs) - held - over} waiting"
        return Fact("Job starts", str(sum(job.starts for job in jobs)), note=note)

    def rewards(self) -> Sequence[float]:
        return self._tally.rewards

    def points(self) -> Sequence[MetricPoint]:
        query = sa.select(tables.MetricPoint).where(tables.MetricPoint.run_id == self.run.id)
        found = self.session.scalars(query.order_by(tables.MetricPoint.key, tables.MetricPoint.step))
        return [MetricPoint(key=p.key, step=p.step, value=p.value, timestamp=p.timestamp) for p in found]

    def checkpoints(self) -> Sequence[CheckpointLine]:
        query = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == self.run.id)
        found = self.session.scalars(query.order_by(tables.Checkpoint.step))
        return [CheckpointLine(row.name, row.step, row.status, row.reward, row.created_at) for row in found]

    def table(self) -> RolloutTable:
        return self._table

    @cached_property
    def _table(self) -> RolloutTable:
        path = self.platform.settings.viewer_index(self.run.id)
        index, progress = FILLERS.filled(path, self._feed(), self._state.pass_threshold, seconds=WAIT_S)
        said = judgements.version(self.session, self.run.id)
        index.label(said, self.annotations)
        return RolloutTable(Search(index), progress)

    def _feed(self) -> RunFeed:
        newest = self.session.scalar(
            sa.select(sa.func.max(tables.Rollout.id)).where(tables.Rollout.run_id == self.run.id)
        )
        epoch = f"{self.run.id}:{self.run.retries}"
        return RunFeed(self.platform, self.run.id, epoch, newest or 0, self.run.dataset_path, self.run.rows)

    def whole(self, *, wait: bool = False) -> bool:
        return True

    def row(self, key: str) -> RowCount | None:
        query = sa.select(tables.Rollout.row_index, tables.Rollout.status, tables.Rollout.reward)
        same = (tables.Rollout.run_id == self.run.id, tables.Rollout.step == 0, tables.Rollout.row_key == key)
        found = self.session.execute(query.where(*same)).all()
        if not found:
            return None
        rewards = [reward for _, status, reward in found if status == "success" and reward is not None]
        passed = sum(reward >= self._state.pass_threshold for reward in rewards)
        return RowCount(
            row_index=found[0][0],
            passed=passed,
            missed=len(rewards) - passed,
            unscored=len(found) - len(rewards),
            mean=sum(rewards) / len(rewards) if rewards else None,
        )

    def annotations(self) -> Sequence[Annotation]:
        return judgements.of_run(self.session, self.run.id)

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        return rollouts.text(self.session, self.run.id, row_index, attempt, step)

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        wanted = LogSlice(limit=LOG_LINES, direction="newer" if newer else "older", cursor=cursor)
        levels = LEVELS[LEVELS.index(level) :]
        owner = sa.and_(tables.RunLog.run_id == self.run.id, tables.RunLog.level.in_(levels))
        return wanted.fetch(self.session, tables.RunLog, owner)


def find_run(
    session: Session, platform: Platform, who: Actor, run_id: str, action: policy.Action = "read"
) -> DatabaseRun:
    """NotFound unless it exists in a workspace of the viewer's, Forbidden unless their role may do this with it."""
    run = session.get(tables.Run, run_id)
    seen = run is not None and run.kind in run_lifecycle.SUBMITTED
    role = workspaces.role_of(session, who.user.id, run.workspace_id) if run is not None else None
    if run is None or not seen or role is None:
        raise NotFound(
            "no such run", hint="it may have been deleted, or it belongs to a workspace you are not a member of"
        )
    workspaces.require(role, action)
    author = who.user.name if policy.may(role, "run") else None
    return DatabaseRun(session, platform, run, session.get_one(tables.Workspace, run.workspace_id), role, author)


@dataclass(frozen=True)
class DatabaseLibrary:
    """The runs that a person may see (`viewer.library.Library`)."""

    session: Session
    platform: Platform
    who: Actor
    workspace: tables.Workspace | None = None
    """Only the runs of this one."""

    def run(self, id: str) -> DatabaseRun:
        return find_run(self.session, self.platform, self.who, id)

    def cards(self) -> Sequence[RunCard]:
        """The newest evaluations of their workspaces; the list of all of them is the overview's."""
        mine = [row.id for row, _, _ in workspaces.of_user(self.session, self.who.user)]
        if self.workspace is not None:
            mine = [id_ for id_ in mine if id_ == self.workspace.id]
        query = sa.select(tables.Run).where(tables.Run.workspace_id.in_(mine), tables.Run.kind == "eval")
        found = self.session.scalars(query.order_by(tables.Run.created_at.desc(), tables.Run.id).limit(over_runs.MOST))
        return [_card(run) for run in found]

    def code(self, a: str, b: str) -> CodePair:
        """By the repository of their workspace, as it is kept here."""
        runs = self.run(a), self.run(b)
        owners = {run.workspace.id for run in runs}
        found = repositories.of_workspace(self.session, owners.pop())
        if owners:
            why = "the runs are of two workspaces, each with a repository of its own"
            return code_pair(*runs, (), lacking=why)
        if found is None:
            return code_pair(*runs, (), lacking="no repository is connected to the workspace any more")
        git = MirrorPlace.of(found, self.platform.settings).git(self.platform.settings.environ)
        return code_pair(*runs, [git], repository=found.id)

    def quarantine(self) -> RowQuarantine:
        """None but those of the runs: each has what its commit says."""
        return RowQuarantine()


def _card(run: tables.Run) -> RunCard:
    report = run_results.report_of(run)
    done = report.completed if report else (run.progress or tables.StoredProgress()).get("completed", 0)
    primary = report.primary if report else None
    return RunCard(
        id=run.id,
        name=run.name,
        state=state_of(run, done, report),
        score=primary.name if primary else "",
        mean=primary.mean if primary else None,
        pass_rate=primary.pass_rate if primary else None,
        dataset=run.dataset,
        rollout=run.rollout,
        commit=run.commit_sha,
        created_at=run.created_at.isoformat(),
        marks=run_marks.of(run),
    )


def _git_of(imported: tables.Imported) -> dict[str, object]:
    """What is known of the commit that an uploaded run was made at."""
    git = imported["provenance"].get("git")
    return git if isinstance(git, dict) else {}


def row_ranges(rows: Sequence[int], most: int = 60) -> str:
    """`0-9, 12, 15-20`: a list of row indices, short."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    shown = [f"{low}" if low == high else f"{low}-{high}" for low, high in parts[:most]]
    return ", ".join(shown) + (f", … ({len(rows)} rows)" if len(parts) > most else "")
