"""The ledger of groups: which rows come next, the same again after a restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from osmosis.records.run.training import EnvironmentPlan
from osmosis.training.groups import Group, GroupLedger
from support.training_desk import plan_of


def train(ledger: GroupLedger, step: int, silent: set[int]) -> list[int]:
    """A step of as many groups as it needs, all of them trained on."""
    rows = ledger.draw(step, ledger.count_due([step]))
    ledger.begin(step, rows, version=step - 1)
    groups = [Group(step, row) for row in rows]
    ledger.settle(step, groups, [], [group for group in groups if group.row in silent])
    return rows


def test_every_row_comes_once_in_a_pass_and_passes_differ(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, steps=9, rows=list(range(6)))
    ledger = GroupLedger(tmp_path / "steps", plan)
    rows = [train(ledger, step, set()) for step in range(1, 10)]
    passes = [[row for step in rows[at : at + 3] for row in step] for at in (0, 3, 6)]
    assert [sorted(rows_of_pass) for rows_of_pass in passes] == [list(range(6))] * 3
    assert len({tuple(rows_of_pass) for rows_of_pass in passes}) == 3


def test_with_a_curriculum_rows_without_signal_come_less_often_but_come(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, steps=200, rows=list(range(8)), curriculum=True)
    ledger, counts = GroupLedger(tmp_path / "steps", plan), Counter[int]()
    for step in range(1, 101):
        counts.update(train(ledger, step, {0, 1}))
    others = [counts[row] for row in range(2, 8)]
    assert max(others) - min(others) <= 1
    assert 0 < counts[0] < max(others) / 4
    again = GroupLedger(tmp_path / "steps", plan)
    assert again.draw(101, 2) == ledger.draw(101, 2)
    for step in range(101, 141):  # they teach something again
        counts.update(train(again, step, set()))
    assert counts[0] > 8


def test_no_more_groups_begin_than_the_last_steps_need(tmp_path: Path) -> None:
    ledger = GroupLedger(tmp_path / "steps", plan_of(tmp_path, steps=3, rows=list(range(9)), oversample=1.5))
    assert ledger.count_due([1]) == 3
    assert ledger.count_due([1, 2]) == 5
    assert ledger.count_due([3]) == 2
    ledger.begin(1, [0, 1, 2], version=0)
    ledger.settle(1, [Group(1, 0), Group(1, 2)], [], [])
    assert ledger.list_unused() == [Group(1, 1)]
    assert ledger.count_due([2]) == 2
    assert 1 not in ledger.draw(2, 5), "it is in flight"
    assert 1 in ledger.draw(2, 9)


def test_a_curriculum_changes_which_rows_come_and_not_how_many_of_each_environment(tmp_path: Path) -> None:
    halves = [
        EnvironmentPlan(
            name=name, share=0.5, start=start, rows=list(range(start, start + 8)), validation_rows=[], test_rows=[]
        )
        for name, start in (("a", 0), ("b", 8))
    ]
    plan = plan_of(tmp_path, steps=200, rows=list(range(16)), curriculum=True, environments=halves)
    ledger, counts = GroupLedger(tmp_path / "steps", plan), Counter[int]()
    for step in range(1, 61):
        counts.update(train(ledger, step, {0, 1, 2, 3, 4, 5, 6}))
    drawn = Counter(plan.find_environment(row) for row in counts.elements())
    assert abs(drawn[0] - drawn[1]) <= 1
    assert counts[7] > 4 * counts[0] > 0
    assert GroupLedger(tmp_path / "steps", plan).draw(61, 2) == ledger.draw(61, 2)
