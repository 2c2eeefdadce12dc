"""Two runs side by side: pairs, flips, and what failures and edited rows do to the difference."""

import pytest

from osmosis.errors import ValidationError
from osmosis.metrics.compare import compare
from osmosis.records.rollout import Rollout, RolloutStatus, Score


def scored(values, name="f", edited=()):
    return [
        Rollout(
            rollout_id=f"{row}-{attempt}",
            row_index=row,
            attempt=attempt,
            status=RolloutStatus.SUCCESS,
            scores={name: Score(name=name, value=value)},
            hashes={"row": f"{row}-edited" if row in edited else f"{row}"},
        )
        for (row, attempt), value in values.items()
    ]


def test_comparing_pairs_by_row_and_attempt():
    before = {(r, a): float(r % 2) for r in range(20) for a in range(2)}
    after = {**before, (0, 0): 1.0, (1, 0): 0.0, (3, 0): 0.0, (5, 1): 0.0, (7, 0): None, (30, 0): 1.0}
    a, b = scored(before), scored(after)
    found = compare(a, b, threshold=1.0)
    assert (found.pairs, found.rows, found.only_a, found.only_b) == (39, 20, 1, 1)
    assert (found.gained, found.lost) == (1, 3)
    assert found.p_value == pytest.approx(0.625)
    assert found.difference == pytest.approx(-0.05)
    assert found.interval.low < found.difference < found.interval.high
    assert [(f.row_index, f.attempt, f.gained) for f in found.flips] == [
        (0, 0, True),
        (1, 0, False),
        (3, 0, False),
        (5, 1, False),
    ]
    assert found.verdict == "no clear difference"
    assert not found.regressed()
    assert found.regressed(0.01)
    assert not found.regressed(0.5)


def test_a_clear_loss_is_a_regression():
    a = scored({(r, 0): 1.0 for r in range(30)})
    b = scored({(r, 0): float(r % 3 == 0) for r in range(30)})
    found = compare(a, b, threshold=1.0)
    assert found.verdict == "worse"
    assert found.regressed()
    assert not compare(b, a, threshold=1.0).regressed()


def test_a_run_that_fails_where_it_is_hard_is_no_better():
    """By what both scored, B is better: it crashed on every row that A had wrong, and on some that A had right."""
    a = scored({(r, 0): float(r % 4 != 0) for r in range(40)})
    b = scored({(r, 0): 1.0 if r % 4 == 1 else None for r in range(40)})
    found = compare(a, b, threshold=1.0)
    assert (found.pairs, found.failed_a, found.failed_b) == (10, 0, 30)
    assert (found.difference, found.verdict) == (0.0, "no clear difference")
    assert found.difference_failures_0 == pytest.approx(-0.5)
    assert found.regressed()
    assert found.fails_more()
    assert not compare(b, a, threshold=1.0).regressed()
    assert found.to_dict()["difference_failures_0_ci"][1] < 0


def test_the_difference_is_that_of_the_means_shown():
    a = scored({(0, 0): 0.0, (0, 1): 0.0, (0, 2): 0.0, (1, 0): 1.0, (2, 0): 0.5})
    b = scored({(0, 0): 1.0, (0, 1): 1.0, (0, 2): 1.0, (1, 0): 0.0, (2, 0): 0.5})
    found = compare(a, b, threshold=1.0)
    assert found.difference == pytest.approx(found.mean_b - found.mean_a) == pytest.approx(0.0)


def test_rows_that_are_others_are_no_pairs_in_silence():
    values = {(r, 0): 1.0 for r in range(6)}
    a = scored(values)
    assert compare(a, scored(values), threshold=1.0).rows_differ == 0
    found = compare(a, scored(values, edited=(1, 4)), threshold=1.0)
    assert (found.pairs, found.only_a, found.only_b, found.rows_differ) == (4, 2, 2, 0)
    with pytest.raises(ValidationError, match="have no rows in common"):
        compare(a, scored(values, edited=range(6)), threshold=1.0)


def test_a_row_that_is_known_by_its_id_is_a_pair_and_said_to_be_edited():
    values = {(r, 0): float(r % 2) for r in range(6)}

    def known(edited=()):
        return [r.model_copy(update={"row_key": f"q{r.row_index}"}) for r in scored(values, edited=edited)]

    found = compare(known(), known(edited=(1, 4)), threshold=1.0)
    assert (found.pairs, found.rows_differ) == (6, 2)


def test_rows_are_paired_by_what_they_are_wherever_they_stand():
    before = {(r, 0): float(r % 2) for r in range(6)}
    a, b = scored(before), scored(before)
    for rollout in b:  # a row was put in at the top
        rollout.row_index += 1
    b.append(b[0].model_copy(update={"row_index": 0, "hashes": {"row": "new"}}))
    found = compare(a, b, threshold=1.0)
    assert (found.pairs, found.only_a, found.only_b, found.flips) == (6, 0, 1, [])
    by_id = [r.model_copy(update={"row_key": f"q{r.row_index}"}) for r in b]
    assert compare(a, by_id, threshold=1.0).pairs == 6


def test_runs_that_kept_no_hashes_are_paired_by_place():
    values = {(r, a): 1.0 for r in range(3) for a in range(2)}
    bare = [r.model_copy(update={"hashes": {}}) for r in scored(values)]
    assert compare(bare, scored(values), threshold=1.0).pairs == 6
    assert compare(scored(values), bare, threshold=1.0).pairs == 6


def test_runs_without_a_common_score_cannot_be_compared():
    a = scored({(0, 0): 1.0})
    b = scored({(0, 0): 1.0}, name="g")
    with pytest.raises(ValidationError, match="different scores"):
        compare(a, b, threshold=1.0)
