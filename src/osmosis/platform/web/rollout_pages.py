"""The rollouts of a run: the list with its filters, and one rollout with its whole conversation."""

from __future__ import annotations

import math
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session

from osmosis.records.rollout import Category, RolloutStatus

from .. import tables
from ..services import results, rollouts
from .conversation import turns
from .render import SECURITY, PageRoute, page
from .run_pages import find_run
from .run_view import view
from .session import Viewer, platform_of, viewer

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 50
OUTCOMES = ("passed", "not-passed", "failed", "skipped")
ORDERS = {
    "row": (tables.Rollout.row_index, tables.Rollout.attempt),
    "reward": (tables.Rollout.reward.asc(), tables.Rollout.row_index, tables.Rollout.attempt),
    "tokens": (tables.Rollout.tokens.desc(), tables.Rollout.row_index, tables.Rollout.attempt),
    "duration": (tables.Rollout.duration_ms.desc(), tables.Rollout.row_index, tables.Rollout.attempt),
}


def threshold_of(run: tables.Run) -> float:
    """The score at which a rollout counts as passed."""
    report = results.report_of(run)
    if report is not None:
        return report.pass_threshold
    return float((run.config.get("evaluation") or {}).get("pass_threshold", 1.0))


def outcome_of(row: Any, threshold: float) -> str:
    """`passed`, `not-passed`, `failed` (no score, whoever is to blame) or `skipped`."""
    if row.status == RolloutStatus.SKIPPED.value:
        return "skipped"
    if row.reward is None:
        return "failed"
    return "passed" if row.reward >= threshold else "not-passed"


def _where(outcome: str, threshold: float) -> sa.ColumnElement[bool]:
    reward, status = tables.Rollout.reward, tables.Rollout.status
    skipped = status == RolloutStatus.SKIPPED.value
    return {
        "passed": sa.and_(~skipped, reward >= threshold),
        "not-passed": sa.and_(~skipped, reward < threshold),
        "failed": sa.and_(~skipped, reward.is_(None)),
        "skipped": skipped,
    }[outcome]


@router.get("/runs/{run_id}/rollouts")
def rollout_list(
    request: Request,
    who: ViewerDep,
    run_id: str,
    outcome: str = "",
    category: str = "",
    row: str = "",
    order: str = "row",
    at: int = 1,
) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        threshold = threshold_of(found.run)
        query = sa.select(tables.Rollout).where(tables.Rollout.run_id == run_id)
        if outcome in OUTCOMES:
            query = query.where(_where(outcome, threshold))
        if category:
            query = query.where(tables.Rollout.failure_category == category)
        if row.isascii() and row.isdigit():
            query = query.where(tables.Rollout.row_index == int(row[:9]))
        total = session.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        query = query.order_by(*ORDERS.get(order, ORDERS["row"])).limit(PER_PAGE).offset((at - 1) * PER_PAGE)
        rows = [(one, outcome_of(one, threshold)) for one in session.scalars(query)]
        counted = _counted(session, run_id, threshold)
        shown = view(found.run, sum(counted.values()))
    return page(
        request, "rollouts.html", who, here="runs", tab="rollouts", workspace=found.workspace.name, found=found,
        view=shown, rows=rows, counted=counted, total=total, at=at, pages=pages, threshold=threshold,
        chosen={"outcome": outcome, "category": category, "row": row, "order": order},
        categories=[known.value for known in Category], outcomes=OUTCOMES, orders=list(ORDERS),
    )  # fmt: skip


def _counted(session: Session, run_id: str, threshold: float) -> dict[str, int]:
    """How many rollouts have each outcome."""
    columns = [sa.func.count().filter(_where(outcome, threshold)) for outcome in OUTCOMES]
    row = session.execute(sa.select(*columns).where(tables.Rollout.run_id == run_id)).one()
    return dict(zip(OUTCOMES, row, strict=True))


@router.get("/runs/{run_id}/rollouts/{row_index}/{attempt}")
def rollout_page(
    request: Request, who: ViewerDep, run_id: str, row_index: int, attempt: int, raw: bool = False
) -> Response:
    """One rollout; `?raw=true` is its record as JSON."""
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        if raw:
            text = rollouts.text(session, run_id, row_index, attempt)
            return Response(text, media_type="application/json", headers={**SECURITY, "Cache-Control": "no-store"})
        record = rollouts.get(session, run_id, row_index, attempt)
        threshold = threshold_of(found.run)
        near = _near(session, run_id, row_index, attempt)
        siblings = _siblings(session, run_id, row_index, threshold)
    mine = next((outcome for number, outcome in siblings if number == attempt), "failed")
    return page(
        request, "rollout.html", who, here="runs", workspace=found.workspace.name, found=found, record=record,
        turns=turns(record.messages), outcome=mine, threshold=threshold, near=near, siblings=siblings,
    )  # fmt: skip


def _near(session: Session, run_id: str, row_index: int, attempt: int) -> dict[str, tuple[int, int] | None]:
    """The rollouts before and after, and the next one without a score."""
    key = sa.tuple_(tables.Rollout.row_index, tables.Rollout.attempt)
    here = sa.tuple_(sa.literal(row_index), sa.literal(attempt))
    base = sa.select(tables.Rollout.row_index, tables.Rollout.attempt).where(tables.Rollout.run_id == run_id)
    up = (tables.Rollout.row_index, tables.Rollout.attempt)
    down = (tables.Rollout.row_index.desc(), tables.Rollout.attempt.desc())
    failed = tables.Rollout.reward.is_(None)
    queries = {
        "before": base.where(key < here).order_by(*down),
        "after": base.where(key > here).order_by(*up),
        "next_failed": base.where(key > here, failed).order_by(*up),
    }
    found = {name: session.execute(query.limit(1)).first() for name, query in queries.items()}
    return {name: (row[0], row[1]) if row else None for name, row in found.items()}


def _siblings(session: Session, run_id: str, row_index: int, threshold: float) -> list[tuple[int, str]]:
    """The attempts at the same row, with their outcomes."""
    query = sa.select(tables.Rollout).where(tables.Rollout.run_id == run_id, tables.Rollout.row_index == row_index)
    found = session.scalars(query.order_by(tables.Rollout.attempt).limit(100))
    return [(row.attempt, outcome_of(row, threshold)) for row in found]
