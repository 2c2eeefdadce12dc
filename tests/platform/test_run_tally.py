"""What a run's rollouts add up to is kept between views, and is right again after everything that changes it."""

from __future__ import annotations

import threading

import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.db import SHARED
from osmosis.platform.runs import rollouts
from osmosis.platform.runs.rollouts import MOST_TALLIES, RunTally, tally_of
from osmosis.records.run.rollout import RolloutStatus
from osmosis.records.run.status import RunStatus
from support.platform_data import add_rollouts, add_run, rollout, timeout


def test_it_counts_what_came_since_and_begins_anew_after_a_retry(site) -> None:
    db = site.platform.db
    run_id = add_run(site.platform, site.workspace_id, sampled_rows=4)
    add_rollouts(site.platform, run_id, [rollout(0, 0, 1.0), rollout(1, 0, failure=timeout()), rollout(2, 0, 0.25)])
    with db.read() as session:
        first = tally_of(session, run_id)
    assert (first.total, list(first.rewards), first.count(RolloutStatus.FAILED)) == (3, [0.25, 1.0], 1)
    assert first.outcomes(1.0) == {"passed": 1, "not-passed": 1, "failed": 1, "skipped": 0}

    add_rollouts(site.platform, run_id, [rollout(3, 0, 0.5)])
    with db.read() as session:
        asked: list[str] = []
        sa.event.listen(db.engine, "before_cursor_execute", lambda *given: asked.append(str(given[3])))
        second = tally_of(session, run_id)
    assert list(second.rewards) == [0.25, 0.5, 1.0]
    assert any(str(first.last_id) in values for values in asked), "only what is newer than what was counted is read"

    with db.write() as session:
        rollouts.drop_unsuccessful(session, run_id)
        inside = tally_of(session, run_id)
        session.add(tables.RunEvent(run_id=run_id, before="finished", status=RunStatus.PENDING.value))
    with db.read() as session:
        third = tally_of(session, run_id)
        fresh = counted_plainly(session, run_id)
    assert (inside.total, third.total) == (3, 3)
    assert (third.statuses, list(third.rewards)) == fresh


def counted_plainly(session, run_id):
    """Counted the plain way."""
    rows = session.execute(
        sa.select(tables.Rollout.status, tables.Rollout.reward).where(tables.Rollout.run_id == run_id)
    ).all()
    statuses: dict[str, int] = {}
    for status, _ in rows:
        statuses[status] = statuses.get(status, 0) + 1
    return statuses, sorted(reward for _, reward in rows if reward is not None)


def test_rollouts_that_two_jobs_store_at_once_are_all_counted(site) -> None:
    """The one whose transaction ends last was written first, and somebody looks in between."""
    platform = site.platform
    run_id = add_run(platform, site.workspace_id, sampled_rows=4)
    other = threading.Thread(target=add_rollouts, args=(platform, run_id, [rollout(1, 0, 0.5)]))
    with platform.db.write() as session:
        rollouts.store(session, run_id, [rollout(0, 0, 1.0)])
        other.start()
        other.join(1.0)
        with platform.db.read() as look:
            assert tally_of(look, run_id).total == 0
    other.join()
    with platform.db.read() as session:
        assert list(tally_of(session, run_id).rewards) == [0.5, 1.0]


def test_a_transaction_that_is_rolled_back_leaves_nothing_behind(site) -> None:
    run_id = add_run(site.platform, site.workspace_id)
    add_rollouts(site.platform, run_id, [rollout(0, 0, 1.0)])
    try:
        with site.platform.db.write() as session:
            rollouts.store(session, run_id, [rollout(1, 0, 1.0)])
            assert tally_of(session, run_id).total == 2
            raise KeyError
    except KeyError:
        pass
    with site.platform.db.read() as session:
        assert tally_of(session, run_id).total == 1


def test_a_process_keeps_only_so_many(site) -> None:
    with site.platform.db.read() as session:
        for number in range(MOST_TALLIES + 5):
            tally_of(session, str(number))
        assert list(session.info[SHARED][RunTally]) == [str(number) for number in range(5, MOST_TALLIES + 5)]
