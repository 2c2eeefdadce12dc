"""`[notify]`: what is sent where when a run ends, what is refused, and that a dead hook changes no run."""

from __future__ import annotations

import base64
import email
import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle, notices
from osmosis.records.run.job import ALARM, JobResult, LogLine
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.status import RunStatus
from support.platform_data import EXPERIMENT, report
from support.receivers import Received, hook, mail_server

from .conftest import Site


@pytest.fixture
def hooked(ready: Site) -> Iterator[tuple[Site, Received]]:
    """A platform whose notices are delivered by the test, and a hook that two secrets name."""
    ready.http.app.state.notifier.stop()
    with hook() as received:
        for name, value in (("NOTIFY_URL", received.url), ("SLACK_URL", f"{received.url}/slack"), ("KEY", "k3y")):
            put_secret(ready, name, value)
        yield ready, received


def put_secret(site: Site, name: str, value: str) -> None:
    site.json("POST", "environment-secrets", json={"name": name, "value": value, "scope": "workspace"})


def submit(site: Site, expect: int = 200, **notify: Any) -> Any:
    body = {"experiment_config": EXPERIMENT, "notify_config": notify}
    return site.json("POST", "eval-runs", json=body, expect=expect)


def end(site: Site, run_id: str, status: RunStatus = RunStatus.FINISHED, category: Category | None = None) -> None:
    failure = category and Failure(phase=Phase.SETUP, category=category, message="no <model> answers")
    with site.platform.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        lifecycle.switch_status(session, run, RunStatus.RUNNING)
        result = JobResult(status=status, report=report(completed=10) if failure is None else None, failure=failure)
        lifecycle.end(session, run, result, "")


def log_of(site: Site, run: Any) -> str:
    return str([line["message"] for line in site.json("GET", f"eval-runs/{run['name']}/logs")["logs"]])


def make_due(site: Site) -> None:
    with site.platform.db.write() as session:
        for row in session.scalars(sa.select(tables.Notice)):
            row.due_at = row.created_at


def test_the_end_of_a_run_is_posted_signed_and_to_slack(hooked: tuple[Site, Received], caplog: Any) -> None:
    site, received = hooked
    caplog.set_level(logging.INFO)
    run = submit(site, webhook_secret="NOTIFY_URL", signing_secret="KEY", slack_secret="SLACK_URL")
    end(site, run["id"])
    notices.deliver_due(site.platform)
    notices.deliver_due(site.platform)
    posts = {path: (headers, body) for path, headers, body in received.posts}
    assert len(received.posts) == 2
    headers, body = posts["/hooks/s3cret"]
    record = json.loads(body)
    assert (record["event"], record["run"], record["status"]) == ("run.ended", run["name"], "finished")
    assert record["url"].endswith(f"/runs/{run['id']}")
    assert record["reward"] == report(completed=10).primary.mean
    assert record["alarms"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    code = base64.b64encode(hmac.digest(b"k3y", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{code}"
    text = json.loads(posts["/hooks/s3cret/slack"][1])["text"]
    assert text.startswith(f"{run['name']} finished: reward ")
    assert "s3cret" not in caplog.text + log_of(site, run)


def test_failed_tells_of_failures_limits_and_alarms_alone(hooked: tuple[Site, Received]) -> None:
    site, received = hooked
    notify = {"when": "failed", "slack_secret": "SLACK_URL"}
    fine, stopped, broken, limited = (submit(site, **notify)["id"] for _ in range(4))
    end(site, fine)
    end(site, stopped, RunStatus.STOPPED)
    end(site, broken, RunStatus.FAILED, Category.SERVER_DIED)
    end(site, limited, RunStatus.STOPPED, Category.BUDGET)
    with site.platform.db.write() as session:
        line = LogLine(step=ALARM, level="warning", message="the entropy has fallen")
        lifecycle.add_lines(session, session.get_one(tables.Run, fine), [line])
    notices.deliver_due(site.platform)
    texts = [json.loads(body)["text"] for _, _, body in received.posts]
    words = ["no &lt;model&gt; answers", "stopped at a limit", "the entropy has fallen"]
    assert [word in text for word, text in zip(words, texts, strict=True)] == [True, True, True]


def test_a_hook_that_is_away_is_tried_again_and_a_wrong_one_is_not(hooked: tuple[Site, Received]) -> None:
    site, received = hooked
    run = submit(site, webhook_secret="NOTIFY_URL")
    end(site, run["id"])
    received.answers = [503, 302]
    notices.deliver_due(site.platform)
    notices.deliver_due(site.platform)  # not due yet
    assert len(received.posts) == 1
    assert "HTTP 503; next try in" in log_of(site, run)
    make_due(site)
    notices.deliver_due(site.platform)
    make_due(site)
    notices.deliver_due(site.platform)
    assert [path for path, _, _ in received.posts] == ["/hooks/s3cret"] * 2  # no redirect is followed
    assert "HTTP 302; it is not tried again" in log_of(site, run)
    assert site.json("GET", f"eval-runs/{run['name']}")["eval_run"]["status"] == "finished"


@pytest.mark.parametrize(
    ("url", "public", "problem"),
    [
        ("http://169.254.169.254/latest", False, "not a public address"),
        ("http://127.0.0.1:1/", True, "not a public address"),
        ("http://[::ffff:10.0.0.1]/", True, "not a public address"),
        ("http://1.1.1.1/", False, "plain http"),
        ("file:///etc/passwd", False, "not an http:// or https:// URL"),
    ],
)
def test_internal_addresses_are_not_reached(
    hooked: tuple[Site, Received], url: str, public: bool, problem: str
) -> None:
    site, _ = hooked
    put_secret(site, "NOTIFY_URL", url)
    run = submit(site, webhook_secret="NOTIFY_URL")
    end(site, run["id"])
    changes = {"host": "0.0.0.0", "public_url": "https://osmosis.example.com"} if public else {}
    notices.deliver_due(replace(site.platform, settings=site.platform.settings.model_copy(update=changes)))
    text = log_of(site, run)
    assert problem in text
    assert url not in text


def test_mail_goes_through_the_operators_server(hooked: tuple[Site, Received]) -> None:
    site, _ = hooked
    refused = submit(site, expect=400, email=["team@example.com"])
    assert [issue["key"] for issue in refused["issues"]] == ["notify.email"]
    assert "OSMOSIS_SMTP_URL" in refused["hint"]
    with mail_server() as received:
        settings = site.platform.settings.model_copy(update={"smtp_url": SecretStr(received.url)})
        site.http.app.state.platform = site.platform = replace(site.platform, settings=settings)
        end(site, submit(site, email=["team@example.com", "ada@example.com"])["id"])
        notices.deliver_due(site.platform)
    (mail,) = map(email.message_from_string, received.mails)
    assert (mail["From"], mail["To"]) == ("osmosis@example.com", "team@example.com, ada@example.com")
    assert "multiply-1 finished: reward 0.6" in mail["Subject"]
    assert "/runs/" in mail.get_payload(decode=True).decode()


def test_a_config_that_tells_nobody_or_names_no_secret_is_refused(hooked: tuple[Site, Received]) -> None:
    site, _ = hooked
    nobody = submit(site, expect=400, when="failed")
    assert [issue["key"] for issue in nobody["issues"]] == ["notify.slack_secret"]
    unsigned = submit(site, expect=400, slack_secret="SLACK_URL", signing_secret="KEY")
    assert [issue["key"] for issue in unsigned["issues"]] == ["notify.signing_secret"]
    wrong = submit(site, expect=400, email=["a@b\r\nBcc: x@y"])
    assert wrong["issues"][0]["key"].startswith("notify.email")
    assert submit(site, expect=404, slack_secret="MISSING_URL")["missing"] == ["MISSING_URL"]
