"""A run over many jobs has the report of one: however its rollouts are split and merged, to the last digit."""

from __future__ import annotations

from functools import reduce

from hypothesis import HealthCheck, example, given, settings, strategies as st

from osmosis.metrics.summary import Summary, Terms, summarize
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage
from support.platform_data import rollout

ROWS, ATTEMPTS = 6, 3
MOSTLY_QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline: nothing is said of time here, and machines are shared."""

# Sums of these depend on the order in which they are made, unless that is taken care of.
values = st.sampled_from([0.0, 1.0, 0.1, 0.2, 0.7, 1e16, -1e16, 1 / 3]) | st.floats(-1e9, 1e9)
costs = st.none() | st.sampled_from([0.1, 0.2, 1e-17, 3.7, 1e9])
tokens = st.integers(0, 5000)
usages = st.builds(
    Usage,
    prompt_tokens=tokens,
    completion_tokens=tokens,
    cached_tokens=tokens,
    cache_write_tokens=tokens,
    reasoning_tokens=tokens,
    cost_usd=costs,
)
failures = st.builds(
    Failure,
    phase=st.sampled_from([Phase.AGENT, Phase.MODEL, Phase.SCORE]),
    category=st.sampled_from([Category.TIMEOUT, Category.RATE_LIMIT, Category.AGENT_ERROR]),
    message=st.sampled_from(["late", "too fast", "boom", ""]),
)
NAMES = ["reward", "judge", "judge.tone", "judge.facts", "other"]


@st.composite
def a_score(draw: st.DrawFn, name: str) -> Score:
    failure = draw(st.none() | failures)
    value = None if failure is not None else draw(values)
    return Score(name=name, value=value, failure=failure, usage=draw(st.none() | usages))


@st.composite
def a_rollout(draw: st.DrawFn, row: int, attempt: int) -> Rollout:
    status = draw(st.sampled_from([RolloutStatus.SUCCESS] * 4 + [RolloutStatus.FAILED, RolloutStatus.SKIPPED]))
    named = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    return Rollout(
        rollout_id=f"{row}-{attempt}",
        row_index=row,
        attempt=attempt,
        status=status,
        failure=draw(failures) if status is RolloutStatus.FAILED else None,
        scores={name: draw(a_score(name)) for name in named},
        finish_reason=draw(st.sampled_from([None, "stop", "length", "content_filter", "max_turns", "refusal"])),
        answer_issue=draw(st.sampled_from([None, None, "empty", "truncated"])),
        groups=draw(st.sampled_from([{}, {"level": "easy"}, {"level": "10", "kind": "a"}, {"level": "9"}])),
        usage=draw(usages),
        duration_ms=draw(st.floats(0, 1e7)),
    )


@st.composite
def a_run(draw: st.DrawFn) -> list[Rollout]:
    places = st.tuples(st.integers(0, ROWS - 1), st.integers(0, ATTEMPTS - 1))
    return [draw(a_rollout(*place)) for place in draw(st.lists(places, unique=True, max_size=ROWS * ATTEMPTS))]


terms = st.builds(
    Terms,
    attempts=st.just(ATTEMPTS),
    pass_threshold=st.sampled_from([0.5, 1.0]),
    ks=st.sampled_from([None, (2,), (1, 3)]),
    score_bounds=st.sampled_from([{}, {"reward": (0.0, 10.0)}, {"judge": (-1.0, 1.0)}]),
    reducers=st.sampled_from([(), ("mean", "median", "max"), ("mode", "at-least-2", "pass@2", "pass^3")]),
    group_by=st.sampled_from([(), ("level",), ("level", "kind")]),
)
given_names = st.sampled_from([(), ("reward",), ("judge", "reward"), ("judge", "unused")])


def merged(into: Summary, part: Summary) -> Summary:
    into.merge(part)
    return into


@given(found=a_run(), terms=terms, names=given_names, shards=st.integers(1, 7), data=st.data())
@MOSTLY_QUIET
def test_any_split_into_shards_has_the_report_of_one_job(
    found: list[Rollout], terms: Terms, names: tuple[str, ...], shards: int, data: st.DataObject
) -> None:
    whole = summarize(found, terms, rows=ROWS, score_names=names)
    homes = data.draw(st.lists(st.integers(0, shards - 1), min_size=len(found), max_size=len(found)))
    parts = [Summary(terms, score_names=names) for _ in range(shards)]
    for home, one in data.draw(st.permutations(list(zip(homes, found, strict=True)))):
        # Some come as the record, others as what a journal has of it: a resumed shard reads its lines.
        parts[home].add(one)
    counted = [part.completed for part in parts]
    together = reduce(merged, data.draw(st.permutations(parts)), Summary(terms, score_names=names))
    assert together.report(rows=ROWS).model_dump_json() == whole.model_dump_json()
    assert sum(counted) == together.completed == len(found)
    for record in (whole, *whole.scores):
        assert record.to_dict() == record.model_dump(mode="json", exclude_none=True), "it is dumped as any record"


def test_neither_the_sign_of_zero_nor_the_order_of_attempts_shows_in_a_report() -> None:
    scores = [
        (0, 0, -0.0),
        (1, 0, 0.0),
        *((row, n, value) for row in range(2, 40) for n, value in enumerate((0.1, 0.7, 1 / 3))),
    ]
    found = [rollout(row, attempt, value) for row, attempt, value in scores]
    terms = Terms(ATTEMPTS, 1.0, score_bounds={"reward": (0.0, 1.0)})
    reports = [summarize(order, terms) for order in (found, found[::-1])]
    assert reports[0].model_dump_json() == reports[1].model_dump_json()
    assert reports[0].scores[0].could_show is not None


@given(found=a_run(), terms=terms, cut=st.integers(0, ROWS))
@example(found=[], terms=Terms(attempts=ATTEMPTS, pass_threshold=1.0, group_by=("level",)), cut=0)
@MOSTLY_QUIET
def test_what_was_merged_stays_as_it_was(found: list[Rollout], terms: Terms, cut: int) -> None:
    first, second = Summary(terms), Summary(terms)
    for one in found:
        (first if one.row_index < cut else second).add(one)
    alone = second.report().model_dump_json()
    first.merge(second)
    first.merge(Summary(terms))
    assert second.report().model_dump_json() == alone
    for one in found:  # what is counted after a merge is counted in one of the two
        first.add(one.model_copy(update={"row_index": one.row_index + ROWS}))
    assert second.report().model_dump_json() == alone
