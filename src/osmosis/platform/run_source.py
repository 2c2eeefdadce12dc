"""Runs of the database for the viewer, and all of them as a library, while their session is open."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.git import find_web_page
from osmosis.datasets.row_file import RowPart
from osmosis.errors import OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.datasets.service import iterate_rows
from osmosis.platform.git import repositories
from osmosis.platform.git.mirror import RepositoryFolder
from osmosis.platform.objects.parts import sign_url
from osmosis.platform.paging import LogSlice
from osmosis.platform.runs import decisions, downloads, lifecycle, rollouts, views
from osmosis.platform.training import service as training
from osmosis.platform.workspaces import service as workspaces
from osmosis.platform.workspaces.audit import Actor
from osmosis.records.api import accounts
from osmosis.records.api.body import LogPage
from osmosis.records.config.optimize import Optimization
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.history import RowCount
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Failure, Rollout
from osmosis.records.run.rows import Row, RowQuarantine
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.status import RunStatus
from osmosis.records.run.study import StudyState
from osmosis.viewer import run_source
from osmosis.viewer.history import MAX_RUNS
from osmosis.viewer.index import IndexFillers
from osmosis.viewer.run_source import CodePair, RunCard, build_card, pair_code
from osmosis.viewer.search import Search

LOG_LINES = 200
SCOPES = {"user": "personal", "user_override": "personal, overrides the workspace's", "run": "given at submit"}
WAIT_S = 0.7


def build_state(run: tables.Run, report: Report | None, stored: int | None = None) -> run_source.RunState:
    evaluation = run.config.get("evaluation", {})
    progress = run.progress or tables.StoredProgress()
    total = report.total if report else run.sampled_rows * evaluation.get("n", 1)
    if stored is None:
        stored = report.completed if report else progress.get("completed", 0)
    if run.kind != "eval" or "optimize" in run.config:
        stored, total = progress.get("completed", 0), progress.get("total", 0)
    return run_source.RunState(
        url=f"/runs/{run.id}",
        name=run.name,
        kind="eval" if run.kind == "eval" else "training",
        status=RunStatus(run.status),
        model=run.model_path,
        completed=stored,
        total=total,
        dataset=run.dataset,
        created_at=run.created_at.isoformat(),
        pass_threshold=report.pass_threshold if report else evaluation.get("pass_threshold", 1.0),
        stage=progress.get("stage", ""),
        stopping=run.stop_requested_at is not None,
        duration_ms=lifecycle.duration_ms(run),
        failure=Failure.model_validate(run.failure) if run.failure else None,
        is_search="optimize" in run.config,
        in_flight=progress.get("in_flight", {}) if run.status == RunStatus.RUNNING else {},
    )


@dataclass(frozen=True)
class DatabaseRun:
    session: Session
    platform: Platform
    run: tables.Run
    workspace: tables.Workspace
    role: str = "viewer"
    author: str | None = None  # The viewer's name; None if they may not annotate

    @cached_property
    def _report(self) -> Report | None:
        return views.report_of(self.run)

    @cached_property
    def _tally(self) -> rollouts.RunTally:
        return rollouts.tally_of(self.session, self.run.id)

    @cached_property
    def _state(self) -> run_source.RunState:
        state = build_state(self.run, self._report, self._tally.total)
        reason = views.explain_waiting(self.session, self.run)
        return replace(state, stage=reason) if reason else state

    def state(self) -> run_source.RunState:
        return self._state

    def context(self) -> run_source.RunContext:
        return run_source.RunContext(
            in_list=True,
            workspace=self.workspace.name,
            actions=tuple(self._actions()),
            author=self.author,
            marks=rollouts.get_marks(self.run),
            can_add_rows=accounts.may(self.role, "data"),
            artifacts=self._artifacts,
        )

    def _artifacts(self, rollout: Rollout) -> Iterator[run_source.Artifact]:
        folder = f"runs/{self.run.id}/artifacts/row_{rollout.row_index}_run_{rollout.attempt}"
        for path, size in downloads.list_files(self.session, self.platform, self.run, rollout.rollout_id).items():
            url = sign_url(self.platform, f"{folder}/{path}", method="GET")
            yield run_source.Artifact(path, size, url.removeprefix(self.platform.settings.url))

    def _actions(self) -> Iterator[str]:
        over = RunStatus(self.run.status).over
        if accounts.may(self.role, "run"):
            if not over:
                yield "stop"
            elif self._can_retry():
                yield "retry"
            yield "share"
        if over and accounts.may(self.role, "delete"):
            yield "delete"

    def _can_retry(self) -> bool:
        if self.run.kind != "eval" or self.run.imported is not None:
            return False
        if self._state.is_search:
            return self.run.status != RunStatus.FINISHED.value
        state, report = self._state, self._report
        return state.completed < state.total or (report is not None and report.coverage < 1)

    def report(self) -> Report | None:
        return self._report

    def quarantine(self) -> RowQuarantine:
        return views.quarantine_of(self.run)

    def origin(self) -> run_source.Origin:
        run, imported = self.run, self.run.imported
        seed = f", drawn with seed {run.sample_seed}" if run.sample_seed is not None else ""
        of = f" of {run.dataset_rows:,}" if run.dataset_rows is not None else ""
        branch = f"on {run.branch}" if run.branch else "" if imported else "(pinned)"
        if imported and _git_of(imported).get("dirty"):
            branch = f"{branch}, with uncommitted changes".lstrip(", ")
        facts = (
            run_source.Fact("Rollout", run.rollout),
            run_source.Fact("Commit", run.commit_sha[:12] or None, code=True, help=run.commit_sha, note=branch),
            self._repository(),
            run_source.Fact("Model", run.model_path),
            self._dataset(),
            run_source.Fact("Rows", f"{run.sampled_rows:,}{of}{seed}"),
            run_source.Fact(
                "Uploaded" if imported else "Submitted",
                run.created_at,
                note=f"by {run.creator.name}" if run.creator else "",
            ),
        )
        snapshot = SnapshotNote.model_validate(run.snapshot) if run.snapshot is not None else None
        dirty = imported is not None and bool(_git_of(imported).get("dirty"))
        code = run_source.CodeVersion(run.commit_sha, f"rollouts/{run.rollout}", dirty) if run.commit_sha else None
        events = lifecycle.list_events(self.session, run.id)
        repository = None if imported or run.snapshot else run.repository
        web = find_web_page(repository.url) if repository is not None and repository.kind == "external" else ""
        search = Optimization.model_validate(run.optimization) if run.optimization else None
        return run_source.Origin((*facts, *self._sandbox()), events, snapshot, web, code, search)

    def _sandbox(self) -> Iterator[run_source.Fact]:
        if text := (self.run.progress or tables.StoredProgress()).get("sandbox"):
            level, _, network = text.partition("; ")
            yield run_source.Fact("Sandbox", level, note=network)

    def _repository(self) -> run_source.Fact:
        if self.run.imported:
            name, git = self.run.imported.get("name"), _git_of(self.run.imported)
            repository = str(git.get("repository") or "none")
            return run_source.Fact("Repository", f"{repository} (made on another machine, as {name})")
        if self.run.repository is None:
            return run_source.Fact("Repository", "no longer connected")
        address = f"/{quote(self.workspace.name, safe='')}/repository"
        return run_source.Fact("Repository", self.run.repository.full_name, address)

    def _dataset(self) -> run_source.Fact:
        if self.run.dataset_id:
            return run_source.Fact("Dataset", self.run.dataset, f"/datasets/{self.run.dataset_id}")
        return run_source.Fact("Dataset", self.run.dataset, note="(a local file)" if self.run.imported else "(deleted)")

    def settings(self) -> run_source.RunSettings:
        run, imported = self.run, self.run.imported is not None
        pinned = None if imported else "none (the commit was pinned)"
        facts = [
            run_source.Fact("Commit", run.commit_sha or None, code=True),
            run_source.Fact("Branch", run.branch or pinned),
            run_source.Fact("Dataset", run.dataset, note=(run.dataset_sha256 or "")[:16]),
            run_source.Fact("Rows", row_ranges(run.rows)),
        ]
        if not imported:
            seed = str(run.sample_seed) if run.sample_seed is not None else "none (the first rows in order)"
            scopes = "; ".join(f"{name}: {SCOPES.get(scope, scope)}" for name, scope in run.secret_scopes.items())
            jobs = lifecycle.list_jobs(self.session, self.run)
            last = next((job.worker for job in jobs if job.worker), None)
            note = f"last one on {last}" if last else ""
            if len(jobs) > 1:
                states = Counter(job.state for job in jobs)
                running, over = states[tables.QueueState.HELD], states[tables.QueueState.OVER]
                note = f"{len(jobs)} shards: {running} running, {over} over, {len(jobs) - running - over} waiting"
            starts = run_source.Fact("Job starts", str(sum(job.starts for job in jobs)), note=note)
            facts += [run_source.Fact("Seed", seed), run_source.Fact("Secrets", scopes or None), starts]
        return run_source.RunSettings(run.config, "As run" if imported else "Pinned at submit", facts)

    def rewards(self) -> Sequence[float]:
        return self._tally.rewards

    def points(self) -> Sequence[MetricPoint]:
        query = sa.select(tables.MetricPoint).where(tables.MetricPoint.run_id == self.run.id)
        points = self.session.scalars(query.order_by(tables.MetricPoint.key, tables.MetricPoint.step))
        return [MetricPoint(key=p.key, step=p.step, value=p.value, timestamp=p.timestamp) for p in points]

    def checkpoints(self) -> Sequence[run_source.CheckpointLine]:
        query = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == self.run.id)
        checkpoints = self.session.scalars(query.order_by(tables.Checkpoint.step))
        return [
            run_source.CheckpointLine(row.name, row.step, row.status, row.reward, row.created_at) for row in checkpoints
        ]

    def trained_rows(self) -> set[str]:
        return training.list_trained_rows(self.session, self.run)

    def table(self) -> run_source.RolloutTable:
        return self._table

    @cached_property
    def _table(self) -> run_source.RolloutTable:
        path = self.platform.settings.viewer_index(self.run.id)
        query = sa.select(sa.func.max(tables.Rollout.id)).where(tables.Rollout.run_id == self.run.id)
        newest = self.session.scalar(query)
        epoch = f"{self.run.id}:{self.run.retries}"
        feed = RunFeed(self.platform, self.run.id, epoch, newest or 0, self.run.list_row_parts())
        index, progress = FILLERS.open(path, feed, self._state.pass_threshold, wait_s=WAIT_S)
        index.set_labels(rollouts.annotations_version(self.session, self.run.id), self.annotations)
        return run_source.RolloutTable(Search(index), progress)

    def is_indexed(self, *, wait: bool = False) -> bool:
        return True

    def row_count(self, key: str) -> RowCount | None:
        query = sa.select(tables.Rollout.row_index, tables.Rollout.status, tables.Rollout.reward)
        same = (tables.Rollout.run_id == self.run.id, tables.Rollout.step == 0, tables.Rollout.row_key == key)
        rollouts_of_row = self.session.execute(query.where(*same)).all()
        if not rollouts_of_row:
            return None
        rewards = [reward for _, status, reward in rollouts_of_row if status == "success" and reward is not None]
        passed = sum(reward >= self._state.pass_threshold for reward in rewards)
        return RowCount(
            row_index=rollouts_of_row[0][0],
            passed=passed,
            missed=len(rewards) - passed,
            unscored=len(rollouts_of_row) - len(rewards),
            mean=sum(rewards) / len(rewards) if rewards else None,
        )

    def annotations(self) -> Sequence[Annotation]:
        return rollouts.list_annotations(self.session, self.run.id)

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        return rollouts.get_text(self.session, self.run.id, row_index, attempt, step)

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        part = LogSlice(limit=LOG_LINES, direction="newer" if newer else "older", cursor=cursor)
        levels = run_source.LEVELS[run_source.LEVELS.index(level) :]
        owner = sa.and_(tables.RunLog.run_id == self.run.id, tables.RunLog.level.in_(levels))
        return part.fetch(self.session, tables.RunLog, owner)


@dataclass(frozen=True)
class SharedRun(DatabaseRun):
    """Show a run to whoever has a link: without actions, links to other pages and the log's lines of a failure."""

    url: str = ""

    def state(self) -> run_source.RunState:
        failure = self._state.failure and self._state.failure.model_copy(update={"traceback": None})
        return replace(self._state, url=self.url, failure=failure)

    def context(self) -> run_source.RunContext:
        return run_source.RunContext(tabs=("rollouts",))

    def origin(self) -> run_source.Origin:
        origin = super().origin()
        facts = tuple(replace(fact, url=None) for fact in origin.facts)
        return replace(origin, facts=facts, history=(), snapshot=None, web="", code=None)


def find_run(
    session: Session, platform: Platform, actor: Actor, run_id: str, action: accounts.Action = "read"
) -> DatabaseRun:
    stored = session.get(tables.Run, run_id)
    submitted = stored if stored is not None and stored.kind in lifecycle.SUBMITTED else None
    run, workspace, role = workspaces.admit(session, actor.user, submitted, "run", action)
    author = actor.user.name if accounts.may(role, "run") else None
    return DatabaseRun(session, platform, run, workspace, role, author)


@dataclass(frozen=True)
class DatabaseLibrary:
    session: Session
    platform: Platform
    who: Actor
    workspace: tables.Workspace | None = None

    def run(self, id: str) -> DatabaseRun:
        return find_run(self.session, self.platform, self.who, id)

    def cards(self) -> Sequence[RunCard]:
        mine = [row.id for row, _, _ in workspaces.list_workspaces(self.session, self.who.user)]
        if self.workspace is not None:
            mine = [id_ for id_ in mine if id_ == self.workspace.id]
        query = sa.select(tables.Run).where(tables.Run.workspace_id.in_(mine), tables.Run.kind == "eval")
        runs = self.session.scalars(query.order_by(tables.Run.created_at.desc(), tables.Run.id).limit(MAX_RUNS))
        return [_card(run) for run in runs]

    def code(self, a: str, b: str) -> CodePair:
        runs = self.run(a), self.run(b)
        owners = {run.workspace.id for run in runs}
        repository = repositories.find_for_workspace(self.session, owners.pop())
        if owners:
            reason = "the runs are of two workspaces, each with a repository of its own"
            return pair_code(*runs, (), no_repository=reason)
        if repository is None:
            return pair_code(*runs, (), no_repository="no repository is connected to the workspace any more")
        git = RepositoryFolder.of(repository, self.platform.settings).git(self.platform.settings.environ)
        return pair_code(*runs, [git])

    def quarantine(self) -> RowQuarantine:
        return RowQuarantine()

    def preferences(self, ids: Sequence[str]) -> Sequence[str]:
        return ()

    def decisions(self, id_: str = "") -> list[StudyState]:
        names = {row.id: row.name for row, _, _ in workspaces.list_workspaces(self.session, self.who.user)}
        table, mine = tables.Decision, list(names) if self.workspace is None else [self.workspace.id]
        same = [sa.or_(table.id == id_, table.name == id_)] if id_ else []
        query = sa.select(table).where(table.workspace_id.in_(mine), *same)
        rows = list(self.session.scalars(query.order_by(table.updated_at.desc()).limit(50)))
        runs = decisions.list_runs(self.session, rows)
        return [
            StudyState(
                id=row.id, url=f"/decisions/{row.id}", status=row.status, study=row.study, problem=row.problem,
                runs={arm: [_card(run).to_study_run() for run in own] for arm, own in runs[row.id].items()},
                created_at=row.updated_at.isoformat(), workspace=names[row.workspace_id],
            )
            for row in rows
        ]  # fmt: skip


def _card(run: tables.Run) -> RunCard:
    report = views.report_of(run)
    names = {"dataset": run.dataset, "rollout": run.rollout, "commit": run.commit_sha}
    return build_card(run.id, build_state(run, report), report, rollouts.get_marks(run), **names)


def _git_of(imported: tables.Imported) -> dict[str, object]:
    git = imported["provenance"].get("git")
    return git if isinstance(git, dict) else {}


def row_ranges(rows: Sequence[int], most: int = 60) -> str:
    parts: list[list[int]] = []
    for row in rows:
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    ranges = [f"{low}" if low == high else f"{low}-{high}" for low, high in parts[:most]]
    return ", ".join(ranges) + (f", … ({len(rows)} rows)" if len(parts) > most else "")


log = logging.getLogger(__name__)

FILLERS = IndexFillers()


@dataclass(frozen=True)
class RunFeed:
    platform: Platform
    run_id: str
    epoch: str
    newest: int
    parts: Sequence[RowPart]

    def extent(self) -> int:
        return self.newest

    def since(self, last_id: int) -> Iterator[tuple[int, int, str]]:
        for id_, body in rollouts.iterate_bodies(self.platform.db, self.run_id, last_id):
            yield id_, id_, body

    def dataset_rows(self) -> Iterable[Row]:
        if not self.parts[0][0]:
            return
        try:
            yield from iterate_rows(self.platform.objects, self.parts)
        except OsmosisError as error:
            log.warning("the rows of run %s are not shown: %s", self.run_id, error.message)
