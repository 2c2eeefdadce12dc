"""A change of a run's status holds only for the status that was read: two at one moment do not both happen."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from osmosis.errors import Conflict
from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.records.run.status import RunStatus
from support.platform_data import EVALUATION


def status_of(site, run_id: str) -> tuple[str, int]:
    with site.platform.db.read() as session:
        events = sa.select(sa.func.count()).select_from(tables.RunEvent).where(tables.RunEvent.run_id == run_id)
        return session.get_one(tables.Run, run_id).status, session.scalar(events)


def test_a_stop_that_read_the_run_before_its_claim_changes_nothing(ready) -> None:
    run_id = ready.json("POST", "eval-runs", json=EVALUATION)["id"]
    before = status_of(ready, run_id)

    def stop() -> None:
        with ready.platform.db.write() as session:
            run = session.get_one(tables.Run, run_id)
            claimed = sa.update(tables.Run).where(tables.Run.id == run_id).values(status="running")
            session.execute(claimed, execution_options={"synchronize_session": False})  # as another process would
            lifecycle.switch_status(session, run, RunStatus.STOPPED, "stopped by request")

    with pytest.raises(Conflict, match="at the same moment"):
        stop()
    assert status_of(ready, run_id) == before


def test_a_change_is_written_with_all_that_belongs_to_it(ready) -> None:
    run_id = ready.json("POST", "eval-runs", json=EVALUATION)["id"]
    with ready.platform.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        lifecycle.switch_status(session, run, RunStatus.RUNNING, "claimed")
        assert run.status == "running"
        lifecycle.switch_status(session, run, RunStatus.STOPPED, "stopped")
    with ready.platform.db.read() as session:
        run = session.get_one(tables.Run, run_id)
        assert (run.status, run.stop_requested_at) == ("stopped", None)
        assert [job.state for job in lifecycle.list_jobs(session, run)] == ["over"]
        assert None not in (run.started_at, run.completed_at)
