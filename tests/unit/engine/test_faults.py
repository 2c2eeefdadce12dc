"""Whatever goes wrong lands in its category, costs its own rollout only, and is never a zero score."""

import pytest

from osmosis.engine.journal import Journal
from osmosis.records.run.plan import ModelSpec, Retry, Timeouts
from support.endpoint import ModelEndpoint, Reply, text_reply

SCORE = "helpers_agents:exact"


def outcome(journal):
    """`{row: (phase, category)}` of what failed."""
    failed = {}
    for rollout in journal.rollouts():
        failures = [rollout.failure, *(s.failure for s in rollout.scores.values())]
        for failure in filter(None, failures):
            failed[rollout.row_index] = (failure.phase.value, failure.category.value)
    return failed


@pytest.mark.parametrize(
    ("mode", "category"),
    [
        ("raise", ("agent", "agent_error")),
        ("hang", ("agent", "timeout")),
        ("give_up", ("agent", "agent_error")),
        ("nothing", ("agent", "agent_error")),
        ("cancel", ("agent", "cancelled")),
    ],
)
async def test_agents_that_fail(run, make_plan, make_rows, tmp_path, mode, category):
    rows = [*make_rows(2), *make_rows(1, mode=mode)]
    rows[2].index = 2
    plan = make_plan(agent="helpers_agents:misbehaving", timeouts=Timeouts(agent_s=2.0 if mode == "hang" else 60))
    journal = Journal(tmp_path / "j")
    report = await run(plan, rows, journal=journal)
    assert outcome(journal) == {2: category}
    assert (report.succeeded, report.failed) == (2, 1)
    assert report.primary.scored == 2
    broken = next(r for r in journal.rollouts() if r.row_index == 2)
    assert broken.scores == {}
    assert broken.failure.message


async def test_an_agents_own_words_are_kept_with_its_traceback(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    await run(make_plan(agent="helpers_agents:misbehaving"), make_rows(1, mode="raise"), journal=journal)
    (rollout,) = journal.rollouts()
    assert rollout.failure.message == "RuntimeError: [/red] agent fell over"
    assert "helpers_agents.py" in rollout.failure.traceback


async def test_messages_that_are_no_json_are_stored_as_text(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    await run(make_plan(agent="helpers_agents:misbehaving"), make_rows(1, mode="odd_messages"), journal=journal)
    (rollout,) = journal.rollouts()
    assert "object object" in rollout.messages[0]["content"]


@pytest.mark.parametrize(
    ("mode", "category"),
    [
        ("score_raise", "score_error"),
        ("score_nan", "invalid_score"),
        ("score_text", "invalid_score"),
        ("score_exit", "score_error"),
    ],
)
async def test_score_functions_that_fail_leave_no_score(run, make_plan, make_rows, tmp_path, mode, category):
    journal = Journal(tmp_path / "j")
    report = await run(make_plan(), make_rows(3, mode=mode), scores=["by_mode", "exact"], journal=journal)
    broken, fine = report.scores
    assert (broken.scored, broken.failed, broken.mean_scored) == (0, 3, None)
    assert (fine.scored, fine.failed) == (3, 0)
    assert {(f.phase.value, f.category.value, f.count) for f in report.failures} == {("score", category, 3)}
    for rollout in journal.rollouts():
        assert rollout.status.value == "success"
        assert rollout.scores["helpers_agents:by_mode"].value is None


async def test_a_score_function_that_blocks_is_given_up_and_others_go_on(run, make_plan, make_rows):
    plan = make_plan(timeouts=Timeouts(score_s=2.0), concurrency=4)
    report = await run(plan, make_rows(4), scores=["slow", "exact"])
    slow, exact = report.scores
    assert (slow.scored, slow.failed) == (0, 4)
    assert exact.scored == 4
    assert {f.category.value for f in report.failures} == {"timeout"}


async def test_a_grader_that_raises_is_a_failed_score(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    plan = make_plan(agent="helpers_agents:Work")
    rows = [*make_rows(2), *make_rows(3, mode="raise")[2:]]
    report = await run(plan, rows, scores=[], journal=journal)
    assert outcome(journal) == {2: ("score", "score_error")}
    assert (report.primary.name, report.primary.scored, report.primary.failed) == ("reward", 2, 1)


async def test_a_grader_and_score_functions_stand_beside_each_other(run, make_plan, make_rows):
    report = await run(make_plan(agent="helpers_agents:Work"), make_rows(8))
    assert [s.name for s in report.scores] == ["reward", SCORE]
    assert report.scores[0].mean == report.scores[1].mean


MODEL_FAULTS = [
    (Reply("boom", 500), "server_error"),
    (Reply("<html>"), "bad_response"),
    (Reply("who?", 401), "auth"),
    (Reply("not here", 404), "model_not_found"),
    (Reply("maximum context length", 400), "context_length"),
    (Reply("odd parameter", 400), "bad_request"),
    (Reply(cut=True), "connection"),
    (Reply(hang=True), "timeout"),
]


@pytest.mark.parametrize("agent", ["chat", "misbehaving", "Work"])
@pytest.mark.parametrize(("fault", "category"), MODEL_FAULTS, ids=[c for _, c in MODEL_FAULTS])
async def test_model_faults_are_infrastructure(run, make_plan, make_rows, tmp_path, fault, category, agent):
    def decide(body, number):
        return fault if "What is 1 *" in str(body["messages"]) else None

    journal = Journal(tmp_path / "j")
    with ModelEndpoint(decide) as endpoint:
        plan = make_plan(
            agent=f"helpers_agents:{agent}",
            model=ModelSpec.parse("m", base_url=endpoint.url),
            timeouts=Timeouts(model_s=1.0 if category == "timeout" else 30),  # a busy machine is slow, not silent
            concurrency=2,
        )
        report = await run(plan, make_rows(3, mode="swallow"), scores=["exact"], journal=journal)
    assert outcome(journal) == {1: ("model", category)}
    assert report.succeeded == 2
    assert report.primary.scored == 2
    assert report.failures[0].rows == [1]
    failed = next(r for r in journal.rollouts() if r.row_index == 1)
    assert failed.calls[-1].error.startswith(category)


async def test_a_storm_of_rate_limits_fails_nothing(run, make_plan, make_rows):
    def decide(body, number):
        return Reply("slow down", 429, {"retry-after": "0.01"}) if number % 3 else None

    with ModelEndpoint(decide) as endpoint:
        plan = make_plan(
            model=ModelSpec.parse("m", base_url=endpoint.url),
            concurrency=16,
            retry=Retry(max_attempts=1),
            timeouts=Timeouts(agent_s=10),
        )
        report = await run(plan, make_rows(6))
    assert (report.succeeded, report.failed, report.completed) == (6, 0, 6)


async def test_a_workflow_that_hangs(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    plan = make_plan(agent="helpers_agents:Work", timeouts=Timeouts(agent_s=2.0))
    report = await run(plan, [*make_rows(1), *make_rows(2, mode="hang")[1:]], scores=[], journal=journal)
    assert outcome(journal) == {1: ("agent", "timeout")}
    assert report.primary.scored == 1


@pytest.mark.parametrize("agent", ["chat", "Work"])
async def test_waiting_for_a_rate_limit_is_not_the_agents_time(run, make_plan, make_rows, agent):
    def decide(body, number):
        return Reply("slow down", 429, {"retry-after": "2.5"}) if number == 0 else None

    with ModelEndpoint(decide) as endpoint:
        plan = make_plan(
            agent=f"helpers_agents:{agent}",
            model=ModelSpec.parse("m", base_url=endpoint.url),
            timeouts=Timeouts(agent_s=2.0),
        )
        report = await run(plan, make_rows(1))
    assert report.failed == 0


async def test_equal_failures_in_a_row_end_the_run(run, make_plan, make_rows):
    with ModelEndpoint(lambda body, n: Reply("boom", 500)) as endpoint:
        plan = make_plan(
            model=ModelSpec.parse("m", base_url=endpoint.url),
            concurrency=1,
            retry=Retry(max_attempts=1, breaker_after=5),
        )
        report = await run(plan, make_rows(100))
    assert report.completed == 5
    assert "server_error" in report.stopped
    assert report.total == 100


async def test_a_revoked_key_ends_the_run_soon(run, make_plan, make_rows):
    with ModelEndpoint(lambda body, n: Reply("revoked", 401) if n > 10 else text_reply("x")) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), concurrency=1)
        report = await run(plan, make_rows(100))
    assert report.completed == 14
    assert "auth" in report.stopped
