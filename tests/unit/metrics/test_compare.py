"""Two runs side by side: pairs, flips, and what failures and edited rows do to the difference."""

import random

import pytest

from osmosis.errors import ValidationError
from osmosis.metrics.compare import compare
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score


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
    assert 0.3 < found.p_value_flips < found.p_value < 1.0  # the verdict looks at a failure, too
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
    assert found.conclusion(0.01) == "no clear difference; B is not shown to be at most 0.01 worse than A"
    assert not found.regressed(0.5)
    assert found.conclusion(0.5) == found.conclusion() == "no clear difference"


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
    assert (found.difference, found.verdict) == (0.0, "worse")
    assert found.difference_failures_0 == pytest.approx(-0.5)
    assert found.regressed()
    assert "failures count as 0" in found.conclusion()
    assert found.p_value < 0.05
    assert found.interval_failures_0.level == pytest.approx(0.975)  # two differences were looked at
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


@pytest.mark.parametrize(("rows", "verdict"), [(2, "too few rows to tell"), (4, "too few rows to tell"), (5, "better")])
def test_a_few_rows_are_no_verdict_however_clear(rows, verdict):
    a, b = scored({(r, 0): 0.0 for r in range(rows)}), scored({(r, 0): 1.0 for r in range(rows)})
    found = compare(a, b, threshold=1.0)
    assert found.verdict == verdict
    back = compare(b, a, threshold=1.0)
    assert back.regressed() == (verdict == "better")
    assert back.regressed(0.5)  # it is not shown that nothing is lost
    if verdict == "too few rows to tell":
        assert (found.p_value, found.interval) == (None, None)
    else:
        assert found.p_value == pytest.approx(0.03125, abs=1e-3)


def test_attempts_at_one_row_are_one_observation():
    a = scored({(r, n): float(r < 4) for r in range(12) for n in range(8)})
    b = scored({(r, n): float(4 <= r < 10) for r in range(12) for n in range(8)})
    found = compare(a, b, threshold=1.0)
    assert (found.gained, found.lost) == (48, 32)
    assert found.p_value == pytest.approx(0.549, abs=5e-3)  # mid-p of 6 rows against 4


@pytest.mark.parametrize("seed", range(40))
def test_interval_p_value_verdict_and_gate_agree(seed):
    source = random.Random(seed)
    rows, attempts, shift = source.randint(2, 40), source.randint(1, 4), source.choice([-0.5, -0.2, 0.0, 0.2])
    scale = source.choice([1.0, 5.0])

    def run(extra, failing):
        return scored(
            {
                (row, attempt): None
                if source.random() < failing
                else scale * min(1.0, max(0.0, source.choice([0.0, 0.5, 1.0]) + extra))
                for row in range(rows)
                for attempt in range(attempts)
            }
            | {(0, 0): scale}
        )

    found = compare(run(0, source.choice([0, 0.2])), run(shift, source.choice([0, 0.4])), threshold=1.0)
    assert (found.verdict == "too few rows to tell") == (found.p_value is None)
    assert (found.verdict in ("better", "worse")) == (found.p_value is not None and found.p_value < 0.05)
    assert found.regressed() == (found.verdict == "worse") == found.conclusion().startswith("worse")
    shown = [one for one in (found.interval, found.interval_failures_0) if one is not None]
    if found.p_value is not None and shown:
        assert (found.verdict == "worse") == any(one.high < 0 for one in shown)
        assert (found.verdict == "better") == all(one.low > 0 for one in shown)
    if found.regressed():
        assert found.regressed(0.01)


def test_a_scale_that_is_not_known_needs_more_rows_and_a_declared_one_does_not():
    a, b = scored({(r, 0): 1.0 + r % 2 for r in range(15)}), scored({(r, 0): 4.0 + r % 2 for r in range(15)})
    assert compare(a, b, threshold=1.0).verdict == "too few rows to tell"
    found = compare(a, b, threshold=1.0, bounds={"f": (0.0, 5.0)})
    assert found.verdict == "better"
    assert -5 < found.interval.low < 3 < found.interval.high <= 5


def test_all_attempts_of_a_row_count_however_many_either_run_has():
    """Ten rows that A passes once; of eight attempts of B, the first passes and six fail."""
    a = scored({(r, 0): 1.0 for r in range(10)})
    b = scored({(r, n): float(n < 2) for r in range(10) for n in range(8)})
    found = compare(a, b, threshold=1.0)
    assert (found.pairs, found.rows, found.gained, found.lost) == (10, 10, 0, 0)
    assert (found.mean_a, found.mean_b, found.pass_rate_b, found.verdict) == (1.0, 0.25, 0.25, "worse")
    apart = scored({(r, 1): 0.0 for r in range(10)})
    assert compare(a, apart, threshold=1.0).verdict == "worse"  # no attempt has the other's number


def test_the_largest_change_of_a_row_narrows_graded_scores():
    source = random.Random(4)
    before = {(r, 0): source.uniform(0.3, 0.6) for r in range(30)}
    a, b = scored(before), scored({key: value + source.uniform(0.0, 0.1) for key, value in before.items()})
    wide, narrow = (compare(a, b, threshold=1.0, largest_change=most) for most in (None, 0.2))
    assert (wide.verdict, narrow.verdict) == ("no clear difference", "better")
    assert narrow.interval.high - narrow.interval.low < 0.25 * (wide.interval.high - wide.interval.low)
    assert narrow.detectable < 0.03 < wide.detectable < 0.15
    with pytest.raises(ValidationError, match="more than the largest change"):
        compare(a, b, threshold=1.0, largest_change=0.05)


def test_what_the_rows_could_have_shown_stands_beside_the_verdict():
    """A difference of that size is found in about four of five runs."""
    source = random.Random(3)

    def run(rate):
        return scored({(r, a): float(source.random() < rate) for r in range(60) for a in range(2)})

    sizes = [compare(run(0.5), run(0.5), threshold=1.0).detectable for _ in range(20)]
    size = sum(sizes) / len(sizes)
    assert 0.15 < size < 0.25
    verdicts = [compare(run(0.5), run(0.5 + size), threshold=1.0).verdict for _ in range(100)]
    assert 70 <= verdicts.count("better") <= 93
    assert compare(scored({(0, 0): 1.0}), scored({(0, 0): 0.0}), threshold=1.0).detectable is None


def test_rows_that_a_model_was_trained_on_do_not_show_that_it_is_better():
    a = scored({(r, 0): 0.0 for r in range(40)})
    learned, everywhere = (scored({(r, 0): float(r < rows) for r in range(40)}) for rows in (30, 40))
    keys = {str(r) for r in range(30)}
    assert compare(a, learned, threshold=1.0).verdict == "better"
    found = compare(a, learned, threshold=1.0, trained=keys)
    assert (found.rows, found.trained_rows, found.unseen.rows, found.unseen.difference) == (40, 30, 10, 0.0)
    assert found.verdict == "not shown on unseen rows"
    assert found.conclusion() == "not shown on unseen rows: 30 of 40 were trained on"
    assert found.p_value >= 0.05
    assert found.to_dict()["unseen"]["verdict"] == "no clear difference"

    shown = compare(a, everywhere, threshold=1.0, trained=keys)
    assert (shown.verdict, shown.p_value) == ("better", shown.unseen.p_value)
    only = compare(a, everywhere, threshold=1.0, trained={str(r) for r in range(40)})
    assert (only.verdict, only.p_value, only.unseen) == ("not shown on unseen rows", None, None)
    lost = compare(everywhere, a, threshold=1.0, trained=keys)
    assert (lost.verdict, lost.regressed()) == ("worse", True)
