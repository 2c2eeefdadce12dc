"""What `/api/cli/eval-runs` and `/api/cli/training-runs` answer alike: list, get, log, stop, mark, delete.

One class, made once for each kind; what only one kind has stands in `eval_runs` and `training_runs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.services import audit, datasets, run_bodies, run_lifecycle, run_removal
from osmosis.platform.services.paging import LogSlice, PageRange
from osmosis.platform.slow_work import slow
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.eval_bodies import EvalRunDetail, EvalRunPage
from osmosis.records.contract.run_bodies import MarkedRun, RunDetail, RunPage, RunPriority, StoppingRun
from osmosis.records.contract.training_bodies import TrainingRunDetail, TrainingRunPage
from osmosis.records.marks import MarkChange
from osmosis.records.run_kind import RunKind

from .contract_route import ContractRoute
from .deps import PlatformDep, Scope, ScopeDep

ANSWERS: dict[RunKind, tuple[type[RunPage], type[RunDetail]]] = {
    "eval": (EvalRunPage, EvalRunDetail),
    "training": (TrainingRunPage, TrainingRunDetail),
}


@dataclass(frozen=True, slots=True)
class RunRoutes:
    """The routes of one kind of run."""

    kind: RunKind

    @property
    def prefix(self) -> str:
        return f"/api/cli/{self.kind}-runs"

    def router(self) -> APIRouter:
        """All of them; the caller adds its own below the same prefix."""
        router = APIRouter(route_class=ContractRoute)
        page, detail = ANSWERS[self.kind]
        router.add_api_route(self.prefix, self.list_runs, methods=["GET"], response_model=page)
        router.add_api_route(f"{self.prefix}/{{name}}", self.get_run, methods=["GET"], response_model=detail)
        router.add_api_route(f"{self.prefix}/{{name}}", self.mark, methods=["PATCH"])
        router.add_api_route(f"{self.prefix}/{{name}}", self.delete, methods=["DELETE"], status_code=204)
        router.add_api_route(f"{self.prefix}/{{name}}/logs", self.logs, methods=["GET"])
        router.add_api_route(f"{self.prefix}/{{name}}/stop", self.stop, methods=["POST"])
        router.add_api_route(f"{self.prefix}/{{name}}/priority", self.prioritize, methods=["PUT"])
        return router

    def find(self, session: Session, scope: Scope, name: str) -> tables.Run:
        """The run of this kind with this name or id in the caller's workspace; NotFound otherwise."""
        return run_lifecycle.find(session, scope.workspace, self.kind, name)

    def list_runs(
        self, platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0, tag: str | None = None
    ) -> RunPage:
        page = PageRange(limit, offset)
        with platform.db.read() as session:
            found, total = run_lifecycle.listed(session, page, scope.workspace.id, self.kind, tag)
            users = datasets.creator_names(session, {run.creator_id for run in found})
            place = page.place(len(found), total)
            return run_bodies.run_page(session, platform.settings, self.kind, found, users, place)

    def get_run(self, name: str, platform: PlatformDep, scope: ScopeDep) -> RunDetail:
        with platform.db.read() as session:
            run = self.find(session, scope, name)
            creator = session.get(tables.User, run.creator_id) if run.creator_id else None
            return run_bodies.detail(session, platform.settings, run, creator)

    def logs(
        self,
        name: str,
        platform: PlatformDep,
        scope: ScopeDep,
        limit: int = 50,
        direction: str = "older",
        cursor: str | None = None,
    ) -> LogPage:
        page = LogSlice(limit, direction, cursor)
        with platform.db.read() as session:
            run = self.find(session, scope, name)
            return page.fetch(session, tables.RunLog, tables.RunLog.run_id == run.id)

    def stop(self, name: str, platform: PlatformDep, scope: ScopeDep) -> StoppingRun:
        with platform.db.write() as session:
            run = self.find(session, scope, name)
            run_lifecycle.request_stop(session, run)
            audit.note(session, scope, "run.stop", run.name, workspace=scope.workspace)
            return run_bodies.stopping(platform.settings, run)

    def mark(self, name: str, platform: PlatformDep, scope: ScopeDep, body: MarkChange) -> MarkedRun:
        """Tags, note, pin and name, as far as they are given."""
        with platform.db.write() as session:
            run = self.find(session, scope, name)
            run_lifecycle.mark(session, run, body)
            audit.note(session, scope, "run.mark", name, workspace=scope.workspace, renamed=body.name)
            return run_bodies.marked(run)

    def prioritize(self, name: str, body: RunPriority, platform: PlatformDep, scope: ScopeDep) -> RunPriority:
        with platform.db.write() as session:
            run = self.find(session, scope, name)
            run_lifecycle.prioritize(session, run, body.priority, scope.user.name)
            audit.note(session, scope, "run.priority", run.name, workspace=scope.workspace, priority=body.priority)
            return body

    @slow("objects")
    def delete(self, name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
        with platform.db.write() as session:
            run = self.find(session, scope, name)
            leftovers = run_removal.remove(session, run)
            audit.note(session, scope, "run.delete", run.name, workspace=scope.workspace, kind=run.kind)
        run_removal.clean(platform, leftovers)
        return Response(status_code=204)
