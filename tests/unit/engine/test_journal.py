"""The journal: durable, one line per key, without secrets, and never damaged by its own changes."""

import base64
import json
from urllib.parse import quote

import pytest

from osmosis.base.redact import MARK, Redactor
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, NotFound
from osmosis.records.run.plan import ModelSpec, Timeouts
from osmosis.records.run.rollout import Rollout, RolloutStatus
from support.endpoint import ModelEndpoint, text_reply


def rollout(row, attempt=0, **more):
    return Rollout(rollout_id=f"{row}-{attempt}", row_index=row, attempt=attempt, status=RolloutStatus.SUCCESS, **more)


def test_what_is_appended_is_read_back(tmp_path, make_plan):
    journal = Journal(tmp_path / "j")
    journal.open(make_plan(timeouts=Timeouts(agent_s=None)), facts={"local": {"x": 1}})
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    journal.append(rollout(3, messages=[message]))
    journal.append_all([rollout(1), rollout(3), rollout(2)])
    journal.close()
    again = Journal(tmp_path / "j")
    assert [r.row_index for r in again.rollouts()] == [3, 1, 2]
    assert next(again.rollouts()).messages == [message]
    assert again.plan().timeouts.agent_s is None
    assert again.run()["local"] == {"x": 1}


def test_one_writer_at_a_time(tmp_path, make_plan):
    first = Journal(tmp_path / "j")
    first.open(make_plan())
    with pytest.raises(Conflict, match="another process"):
        Journal(tmp_path / "j").open(make_plan())
    first.close()
    Journal(tmp_path / "j").open(make_plan())


def test_damaged_lines_in_the_middle_are_counted_and_left_out(tmp_path, make_plan):
    journal = Journal(tmp_path / "j")
    journal.open(make_plan())
    journal.append(rollout(0))
    journal.rollouts_path.open("ab").write(b'{"row_index": 1, "att\n')
    journal.append(rollout(2))
    assert [r.row_index for r in journal.rollouts()] == [0, 2]


def test_dropping_sets_aside_and_keeps_the_rest(tmp_path, make_plan):
    journal = Journal(tmp_path / "j")
    journal.open(make_plan())
    journal.append_all([rollout(i) for i in range(4)])
    assert journal.drop({(0, "@1", 0), (0, "@3", 0)}) == 2
    journal.append(rollout(1))
    assert [r.row_index for r in journal.rollouts()] == [0, 2, 1]
    assert (tmp_path / "j" / "superseded.jsonl").read_bytes().count(b"\n") == 2


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(NotFound):
        Journal(tmp_path / "no").run()


SECRET = 'p@ss "w/rd"+ünï'


def test_secrets_are_taken_out_in_every_form(tmp_path, make_plan):
    coded = [base64.b64encode(("x" * i + SECRET + "tail").encode()).decode() for i in range(3)]
    urlsafe = base64.urlsafe_b64encode(("?" + SECRET).encode()).decode()
    texts = [SECRET, quote(SECRET, safe=""), json.dumps({"k": SECRET}), *coded, urlsafe]
    journal = Journal(tmp_path / "j", redactor=Redactor([SECRET]))
    journal.open(make_plan())
    journal.append(
        rollout(0, messages=[{"role": "user", "content": t} for t in texts], info={SECRET: {"deep": [SECRET]}})
    )
    journal.note(forecast={"x": SECRET})
    journal.close()
    written = "".join(p.read_text() for p in (tmp_path / "j").iterdir() if p.is_file())
    (read,) = Journal(tmp_path / "j").rollouts()
    for text in texts:
        assert text not in written
    assert all(MARK in m["content"] for m in read.messages)
    for form in (SECRET, quote(SECRET), json.dumps(SECRET)[1:-1], SECRET.encode().hex()):
        assert form not in written


def test_short_values_and_numbers_are_left_alone():
    redactor = Redactor(["1", "", "12345"])
    assert redactor.text("a 1 b 12345") == f"a 1 b {MARK}"
    assert redactor.data({"n": 12345, "s": ["x12345"]}) == {"n": 12345, "s": [f"x{MARK}"]}


async def test_tokens_that_were_asked_for_stand_beside_the_journal(tmp_path, make_plan, make_rows, run):
    entry = {"token": "4", "logprob": -0.5, "top_logprobs": [{"token": "4", "logprob": -0.5}]}
    reply = text_reply("#### 4")
    reply.body["choices"][0] |= {"logprobs": {"content": [entry]}, "token_ids": [52]}
    reply.body["prompt_token_ids"] = [1, 2]
    journal = Journal(tmp_path / "j")
    with ModelEndpoint(lambda body, n: reply if n else None) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url, params={"logprobs": True}))
        await run(plan, make_rows(2), journal=journal)
    rollouts = {one.rollout_id: one for one in journal.rollouts()}
    assert b"logprob" not in journal.rollouts_path.read_bytes()
    [(rollout_id, [tokens])] = journal.tokens()
    assert rollouts[rollout_id].calls[0].tokens is None
    assert (tokens.prompt_token_ids, tokens.completion_token_ids, tokens.logprobs) == ([1, 2], [52], [-0.5])
    assert tokens.top_logprobs == [entry]
