"""A run of the database as the viewer asks for it (`viewer.source.RunSource`).

Lives as long as the session it reads from; holds what the person who looks may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.services import rollouts, run_lifecycle, run_results, workspaces
from osmosis.platform.services.paging import LogSlice, count_of
from osmosis.platform.services.run_tally import RunTally, tally_of
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import RolloutRow
from osmosis.records.report import Report
from osmosis.records.rollout import Failure, RolloutStatus
from osmosis.records.run import MetricPoint, RunStatus
from osmosis.viewer.source import (
    LEVELS,
    Action,
    CheckpointLine,
    Fact,
    Link,
    Neighbours,
    Origin,
    RolloutList,
    RolloutQuery,
    RunPlace,
    RunSettings,
    RunState,
)

from .session import Viewer

LOG_LINES = 200
SCOPES = {"user": "personal", "user_override": "personal, overrides the workspace's", "run": "given at submit"}
_ROW, _ATTEMPT = tables.Rollout.row_index, tables.Rollout.attempt
_STEP = tables.Rollout.step
_ORDERS = {
    "row": (_STEP, _ROW, _ATTEMPT),
    "reward": (tables.Rollout.reward.asc(), _ROW, _ATTEMPT),
    "tokens": (tables.Rollout.tokens.desc(), _ROW, _ATTEMPT),
    "duration": (tables.Rollout.duration_ms.desc(), _ROW, _ATTEMPT),
}


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
    run: tables.Run
    workspace: tables.Workspace

    @cached_property
    def _report(self) -> Report | None:
        return run_results.report_of(self.run)

    @cached_property
    def _tally(self) -> RunTally:
        return tally_of(self.session, self.run.id)

    @cached_property
    def _state(self) -> RunState:
        return state_of(self.run, self._tally.total, self._report)

    def state(self) -> RunState:
        return self._state

    def place(self) -> RunPlace:
        name = self.workspace.name
        return RunPlace((Link("Runs", "/"), Link(name, f"/?workspace={quote(name, safe='')}")), self._actions())

    def _actions(self) -> tuple[Action, ...]:
        run, url = self.run, f"/runs/{self.run.id}"
        if not RunStatus(run.status).over:
            stopping = run.stop_requested_at is not None
            return (Action("Stopping" if stopping else "Stop", f"{url}/stop", enabled=not stopping),)
        if self._can_retry():
            help_text = "Runs failed and missing rollouts again; keeps the others"
            return (Action("Retry failed rollouts", f"{url}/retry", help_text),)
        return ()

    def _can_retry(self) -> bool:
        if self.run.kind != "eval" or self.run.imported is not None:
            return False
        state, report = self._state, self._report
        return state.completed < state.total or (report is not None and report.coverage < 1)

    def report(self) -> Report | None:
        return self._report

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
        return Origin((*facts, *self._sandbox()), run_lifecycle.events(self.session, run.id))

    def _sandbox(self) -> Iterator[Fact]:
        if words := (self.run.progress or tables.StoredProgress()).get("sandbox"):
            level, _, network = words.partition("; ")
            yield Fact("Sandbox", level, note=network)

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
                Fact("Job starts", str(run.starts), note=f"last one on {run.worker}" if run.worker else ""),
            ]
        return RunSettings(run.config, "As run" if imported else "Pinned at submit", facts)

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

    def rollouts(self, query: RolloutQuery) -> RolloutList:
        wanted = sa.select(tables.Rollout).where(tables.Rollout.run_id == self.run.id)
        if query.outcome:
            wanted = wanted.where(_where(query.outcome, query.threshold))
        if query.category:
            wanted = wanted.where(tables.Rollout.failure_category == query.category)
        if query.row is not None:
            wanted = wanted.where(tables.Rollout.row_index == query.row)
        if query.step is not None:
            wanted = wanted.where(tables.Rollout.step == query.step)
        outcomes = self._tally.outcomes(query.threshold)
        if query.category or query.row is not None or query.step is not None:
            total = count_of(self.session, wanted)
        else:
            total = outcomes[query.outcome] if query.outcome else self._tally.total
        page = wanted.order_by(*_ORDERS[query.order]).limit(query.limit).offset(query.offset)
        rows = [rollouts.body(row) for row in self.session.scalars(page)]
        return RolloutList(rows, total, outcomes)

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        return rollouts.text(self.session, self.run.id, row_index, attempt, step)

    def neighbours(self, row_index: int, attempt: int, step: int) -> Neighbours:
        key = sa.tuple_(_STEP, _ROW, _ATTEMPT)
        here = sa.tuple_(sa.literal(step), sa.literal(row_index), sa.literal(attempt))
        base = sa.select(_ROW, _ATTEMPT, _STEP).where(tables.Rollout.run_id == self.run.id)
        before = base.where(key < here).order_by(_STEP.desc(), _ROW.desc(), _ATTEMPT.desc())
        after = base.where(key > here).order_by(_STEP, _ROW, _ATTEMPT)
        return Neighbours(self._key(before), self._key(after), self._key(after.where(tables.Rollout.reward.is_(None))))

    def _key(self, query: sa.Select[int, int, int]) -> tuple[int, int, int] | None:
        row = self.session.execute(query.limit(1)).first()
        return (row[0], row[1], row[2]) if row else None

    def attempts(self, row_index: int, step: int) -> Sequence[RolloutRow]:
        query = sa.select(tables.Rollout).where(
            tables.Rollout.run_id == self.run.id, tables.Rollout.row_index == row_index, tables.Rollout.step == step
        )
        return [rollouts.body(row) for row in self.session.scalars(query.order_by(_ATTEMPT).limit(100))]

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        wanted = LogSlice(limit=LOG_LINES, direction="newer" if newer else "older", cursor=cursor)
        levels = LEVELS[LEVELS.index(level) :]
        owner = sa.and_(tables.RunLog.run_id == self.run.id, tables.RunLog.level.in_(levels))
        return wanted.fetch(self.session, tables.RunLog, owner)


def find_run(session: Session, who: Viewer, run_id: str) -> DatabaseRun:
    """NotFound unless it exists in a workspace of the viewer's."""
    run = session.get(tables.Run, run_id)
    if run is None or workspaces.role_of(session, who.user.id, run.workspace_id) is None:
        raise NotFound(
            "no such run", hint="it may have been deleted, or it belongs to a workspace you are not a member of"
        )
    return DatabaseRun(session, run, session.get_one(tables.Workspace, run.workspace_id))


def _where(outcome: str, threshold: float) -> sa.ColumnElement[bool]:
    reward, status = tables.Rollout.reward, tables.Rollout.status
    skipped = status == RolloutStatus.SKIPPED.value
    return {
        "passed": sa.and_(~skipped, reward >= threshold),
        "not-passed": sa.and_(~skipped, reward < threshold),
        "failed": sa.and_(~skipped, reward.is_(None)),
        "skipped": skipped,
    }[outcome]


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
