"""Eval runs over the wire: what is refused at submit, what is pinned, and everything that can be read afterwards."""

from __future__ import annotations

import html
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import undefer

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.runs.submit import pick_rows
from osmosis.platform.scheduling import queue
from osmosis.records.run.job import JobResult
from osmosis.records.run.report import PassAtK, Report, ScoreReport
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.status import RunStatus
from osmosis.records.trajectory import Trajectory
from support.platform_data import EXPERIMENT, a_worker


def body(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"experiment_config": dict(EXPERIMENT), "evaluation_config": {"limit": 4}}
    for key, value in changes.items():
        found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
    return found


def submit(site, expect: int = 200, **changes: Any) -> dict[str, Any]:
    return site.json("POST", "eval-runs", expect=expect, json=body(**changes))


def row_of(site, run_id: str) -> tables.Run:
    return site.row(tables.Run, run_id, options=[undefer(tables.Run.rows)])


def a_rollout(row: int, attempt: int = 0, reward: float | None = 1.0, **changes: Any) -> Rollout:
    values = {
        "rollout_id": f"r-{row}-{attempt}",
        "row_index": row,
        "attempt": attempt,
        "status": RolloutStatus.SUCCESS,
        "messages": [{"role": "user", "content": f"row {row} \u2603"}],
        "scores": {"reward": Score(name="reward", value=reward)},
        "usage": Usage(prompt_tokens=3, completion_tokens=2),
        "duration_ms": 12.5,
    }
    return Rollout(**{**values, **changes})


def a_report(**changes: Any) -> Report:
    score = ScoreReport(
        name="reward", mean=0.5, mean_scored=0.75, std=0.5, min=0, max=1, median=0.5, passed=2, scored=3, failed=1,
        pass_rate=0.5, pass_at_k=[PassAtK(k=1, value=0.5, rows=4)],
    )  # fmt: skip
    values = {
        "rows": 4, "attempts": 1, "pass_threshold": 1.0, "total": 4, "completed": 4, "succeeded": 3, "failed": 1,
        "skipped": 0, "coverage": 0.75, "scores": [score], "usage": Usage(prompt_tokens=15, completion_tokens=5),
    }  # fmt: skip
    return Report(**{**values, **changes})


def finished(site, *stored: Rollout, status: RunStatus = RunStatus.FINISHED, **changes: Any) -> dict[str, Any]:
    """A run that is over, with these rollouts."""
    run = submit(site, **changes)
    with site.platform.db.write() as session:
        row = queue.claim(session, a_worker(session), 60).run
        assert row.id == run["id"]
        rollouts.store(session, row.id, stored)
        lifecycle.end(session, row, JobResult(status=status, report=a_report()), "done")
    return run


# --- submit ---


def test_a_run_is_accepted_and_everything_is_pinned(ready) -> None:
    answer = submit(ready, env_config={"LEVEL": "1"}, advanced_config={"params": {"temperature": 0}})
    assert {"id", "name", "status", "created_at", "platform_url"} <= set(answer)
    assert (answer["name"], answer["status"]) == ("multiply-1", "pending")
    run = row_of(ready, answer["id"])
    assert run.rows == [0, 1, 2, 3]
    assert run.sample_seed is None
    assert len(run.commit_sha) == 40
    assert run.branch == "main"
    assert run.config["env"] == {"LEVEL": "1"}
    assert submit(ready)["name"] == "multiply-2"


def test_what_is_in_quarantine_at_the_commit_is_pinned(ready) -> None:
    entry = '[[row]]\nkey = "{key}"\nreason = "wavers"\nuntil = 2099-01-01\ndataset = "{dataset}"\n'
    named = entry.format(key="q-1", dataset="sums") + entry.format(key="q-2", dataset="another")
    ready.push({"quarantine.toml": named})
    before = submit(ready)["name"]
    held = ready.json("GET", f"eval-runs/{before}")["quarantine"]
    assert [(one["key"], one["until"]) for one in held["row"]] == [("q-1", "2099-01-01")]
    ready.push({"quarantine.toml": "[[row]]\nkey = 3\n"})
    refused = submit(ready, expect=400)
    assert "quarantine.toml: row.0.key" in refused["message"]
    ready.push({"quarantine.toml": ""})
    assert "quarantine" not in ready.json("GET", f"eval-runs/{submit(ready)['name']}")


def test_without_a_limit_a_random_tenth_is_drawn_with_a_recorded_seed(ready) -> None:
    answer = ready.json("POST", "eval-runs", json={"experiment_config": EXPERIMENT})
    run = row_of(ready, answer["id"])
    assert len(run.rows) == answer["sampled_rows"] == 4
    assert run.rows == sorted(random.Random(run.sample_seed).sample(range(40), 4))
    assert any(
        str(run.sample_seed) in line["message"] for line in ready.json("GET", "eval-runs/multiply-1/logs")["logs"]
    )


def test_what_was_not_committed_is_kept_beside_the_config(ready) -> None:
    note = {"parent": "a" * 40, "files": ["main.py"], "diff": "+ new"}
    for sent in ({"advanced_config": {"snapshot": note}}, {"snapshot": note}):  # in the old place and in ours
        shown = ready.json("GET", f"eval-runs/{submit(ready, **sent)['id']}")
        assert shown["snapshot"] == note
        assert "snapshot" not in shown["config"]["advanced"]


def test_a_snapshot_that_is_none_is_refused(shared) -> None:
    refused = submit(shared, expect=400, snapshot={"files": 3})
    assert refused["message"].startswith("snapshot.files: ")


def test_submits_at_the_same_moment_get_names_of_their_own(ready) -> None:
    with ThreadPoolExecutor(6) as pool:
        names = list(pool.map(lambda _: submit(ready)["name"], range(6)))
    assert sorted(names) == [f"multiply-{n}" for n in range(1, 7)]


def test_a_name_of_ones_own_is_kept_or_refused(ready) -> None:
    assert submit(ready, name="nightly.1")["name"] == "nightly.1"
    assert submit(ready)["name"] == "multiply-1"
    assert submit(ready, expect=409, name="nightly.1")["message"] == "there is already a run named nightly.1"
    for name in ("-x", "a b", "", "x" * 97, 7):
        assert "is not a name of a run" in submit(ready, expect=400, name=name)["message"]


@pytest.mark.parametrize(("total", "limit", "count"), [(4, None, 1), (9, None, 1), (205, None, 20), (5, 50, 5)])
def test_how_many_rows_are_picked(total, limit, count) -> None:
    assert len(pick_rows(total, limit, 1).rows) == count


PROBLEMS = [
    ({"evaluation_config": {"n": "x"}}, "evaluation.n"),
    ({"evaluation_config": {"n": 0}}, "evaluation.n"),
    ({"evaluation_config": {"pass_threshold": 1e999}}, "evaluation.pass_threshold"),
    ({"evaluation_config": {"limitt": 3}}, "evaluation.limitt"),
    ({"experiment_config": {"rollout": ""}}, "experiment.rollout"),
    ({"experiment_config": {"rollout": "../x"}}, "experiment.rollout"),
    ({"experiment_config": {"entrypoint": "../../etc/passwd"}}, "experiment.entrypoint"),
    ({"experiment_config": {"commit_sha": "xyz"}}, "experiment.commit_sha"),
    ({"experiment_config": {"branch": "main", "commit_sha": "abcdef1"}}, "experiment.commit_sha"),
    ({"env_config": {"_OSMOSIS_X": "1"}}, "env._OSMOSIS_X"),
    ({"env_config": {"A": 3}}, "env.A"),
    ({"secrets": {"required": ["lower"]}}, "secrets.required"),
    ({"secrets": {"required": ["A", "A"]}}, "secrets.required"),
    ({"secrets": {"required": [], "other": 1}}, "secrets.other"),
    ({"evaluation": {"n": 1}}, "evaluation"),
    ({"advanced_config": {"base_url": "ftp://x"}}, "advanced.base_url"),
    ({"advanced_config": {"api_key_env": "KEY"}}, "advanced.api_key_env"),
    ({"advanced_config": {"base_ur": "http://x"}}, "advanced.base_ur"),
]


@pytest.mark.parametrize(("change", "key"), PROBLEMS)
def test_a_config_that_is_wrong_is_refused_by_its_toml_key(shared, change, key) -> None:
    import json

    sent = json.dumps(body(**change), allow_nan=True).replace("Infinity", "1e999")
    answer = shared.http.post("/api/cli/eval-runs", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    refused = answer.json()
    assert refused["code"] == "VALIDATION"
    assert key in [issue["key"] for issue in refused["issues"]], refused


def test_every_problem_is_listed_and_a_typo_is_corrected(shared) -> None:
    refused = submit(shared, expect=400, evaluation_config={"n": "x", "limitt": 3}, env_config={"low": "1"})
    found = {issue["key"]: issue for issue in refused["issues"]}
    assert {"evaluation.n", "evaluation.limitt", "env.low"} <= set(found)
    assert found["evaluation.limitt"]["key_correction"] == "evaluation.limit"


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"dataset": "nowhere"}, "experiment.dataset", "no dataset named 'nowhere'"),
        ({"rollout": "multiplu"}, "experiment.rollout", "multiplu"),
        ({"entrypoint": "missing.py"}, "experiment.entrypoint", "missing.py"),
        ({"entrypoint": None, "command": "codex", "grader": "none.py"}, "experiment.grader", "none.py"),
        ({"branch": "nope"}, "experiment.branch", "nope"),
        ({"commit_sha": "0123456789"}, "experiment.commit_sha", "0123456789"),
    ],
)
def test_what_is_not_on_the_platform_is_refused(shared, change, key, words) -> None:
    refused = submit(shared, expect=400, experiment_config=change)
    issue = next(issue for issue in refused["issues"] if issue["key"] == key)
    assert words in issue["message"]
    assert refused["hint"]


def test_a_dataset_that_is_not_ready_is_refused(ready) -> None:
    ready.json("POST", "datasets", json={"file_name": "late", "file_size": 9, "extension": "csv"})
    refused = submit(ready, expect=400, experiment_config={"dataset": "late"})
    assert "not ready: uploading" in refused["message"]


def test_branch_and_commit_choose_the_code(ready) -> None:
    main = row_of(ready, submit(ready)["id"]).commit_sha
    other = ready.push({"rollouts/other/main.py": "x = 1\n"}, branch="feature")
    assert submit(ready, expect=400, experiment_config={"rollout": "other"})["issues"]
    on_branch = submit(ready, experiment_config={"rollout": "other", "branch": "feature"})
    assert row_of(ready, on_branch["id"]).commit_sha == other
    pinned = submit(ready, experiment_config={"commit_sha": main[:8]})
    run = row_of(ready, pinned["id"])
    assert (run.commit_sha, run.branch) == (main, None)


def test_a_command_is_kept_as_words(ready) -> None:
    command = ["claude", "-p", "$PROMPT"]
    run = submit(ready, experiment_config={"entrypoint": None, "command": command}, program_config={"home": "home"})
    config = row_of(ready, run["id"]).config
    assert (config["experiment"]["command"], config["program"]) == (command, {"home": "home", "env": []})
    assert ready.json("GET", f"eval-runs/{run['id']}")["config"]["command"] == command


def test_missing_secrets_are_named_in_the_words_clients_match(shared) -> None:
    refused = submit(shared, expect=404, secrets={"required": ["KEY_A", "KEY_B"]})
    assert refused["error"] == "Secret(s) not found: KEY_A, KEY_B"
    assert refused["platform_url"]


def test_stored_and_given_secrets(ready) -> None:
    ready.json("POST", "environment-secrets", json={"name": "KEY_A", "value": "a", "scope": "workspace"})
    answer = submit(ready, secrets={"required": ["KEY_A", "KEY_B"], "provided": {"KEY_B": "given-value"}})
    shown = ready.json("GET", f"eval-runs/{answer['id']}")
    assert shown["resolved_secret_scopes"] == {"KEY_A": "workspace", "KEY_B": "run"}
    assert "given-value" not in str(shown)
    ready.json("POST", f"eval-runs/{answer['id']}/stop", json={})
    assert [row.scope for row in ready.stored(sa.select(tables.Secret))] == ["workspace"]


# --- reading ---


def test_list_and_detail_have_what_clients_read(ready) -> None:
    run = finished(ready, a_rollout(0), a_rollout(1, reward=0.0), a_rollout(2, reward=0.5))
    listed = ready.json("GET", "eval-runs")["eval_runs"][0]
    assert {"id", "name", "status", "created_at", "started_at", "completed_at", "creator_name"} <= set(listed)
    assert listed["model"] == {"name": "offline/calculator"}
    assert listed["results"]["score"] == 0.5
    shown = ready.json("GET", f"eval-runs/{run['name']}")
    assert shown["eval_run"]["id"] == run["id"]
    assert shown["config"]["model_path"] == "offline/calculator"
    assert (shown["entrypoint"], shown["branch"]) == ("main.py", "main")
    results = shown["results"]
    assert (results["passed"], results["graded"], results["failed"], results["skipped"]) == (2, 3, 1, 0)
    assert (results["total_runs"], results["sampled_rows"], results["total_dataset_rows"]) == (4, 4, 40)
    stats = results["reward_stats"]
    assert (stats["mean"], stats["min"], stats["median"], stats["max"]) == (0.5, 0.0, 0.5, 1.0)
    assert stats["pass_at_k"] == {"1": 0.5}
    assert [event["status"] for event in shown["events"]] == ["pending", "running", "finished"]


def test_metrics(ready) -> None:
    run = finished(ready, a_rollout(0), a_rollout(1))
    metrics = ready.json("GET", f"eval-runs/{run['id']}/metrics")
    overview = metrics["overview"]
    assert (metrics["status"], overview["total_samples"], overview["completed_samples"]) == ("finished", 4, 2)
    assert (overview["passed"], overview["pass_rate"], overview["tokens_used"]) == (2, 0.5, 20)
    assert metrics["pass_at_k"] == [{"k": 1, "value": 0.5}]


def test_a_pending_run_can_be_read_too(ready) -> None:
    name = submit(ready)["name"]
    assert ready.json("GET", f"eval-runs/{name}")["results"] is None
    assert ready.json("GET", f"eval-runs/{name}/metrics")["overview"]["completed_samples"] == 0


def test_rollouts_are_listed_and_read_whole(ready) -> None:
    failure = Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message="too slow")
    failed = a_rollout(2, status=RolloutStatus.FAILED, scores={}, failure=failure)
    run = finished(ready, a_rollout(1), failed, a_rollout(0, 1), a_rollout(0, 0))
    listed = ready.json("GET", f"eval-runs/{run['id']}/rollouts")
    assert [(r["row_index"], r["attempt"]) for r in listed["rollouts"]] == [(0, 0), (0, 1), (1, 0), (2, 0)]
    only = ready.json("GET", f"eval-runs/{run['id']}/rollouts?status=failed")["rollouts"]
    assert [(r["row_index"], r["failure_category"]) for r in only] == [(2, "timeout")]
    whole = Rollout.model_validate(ready.json("GET", f"eval-runs/{run['id']}/rollouts/2/0"))
    assert whole == failed
    ready.json("GET", f"eval-runs/{run['id']}/rollouts/9/0", expect=404)
    ready.json("GET", f"eval-runs/{run['id']}/rollouts?status=odd", expect=400)


def test_downloads_weigh_what_the_manifest_says(ready) -> None:
    run = finished(ready, a_rollout(0), a_rollout(3))
    folder = ready.platform.settings.runs_dir / run["id"] / "artifacts" / "r-3-0" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "plot.txt").write_text("drawn")
    (folder / "link.txt").symlink_to(ready.platform.settings.data_dir / "master.key")
    manifest = ready.json("GET", f"eval-runs/{run['id']}/samples/manifest")
    sizes = {file["path"]: file["size"] for file in manifest["files"]}
    assert set(sizes) == {
        "metrics.json",
        "summary.jsonl",
        "trajectories/row_0_run_0.json",
        "trajectories/row_3_run_0.json",
        "artifacts/row_3_run_0/plot.txt",
        "logs.txt",
    }
    assert manifest["totals"] == {"files": 6, "bytes": sum(sizes.values())}
    urls = ready.json(
        "POST", f"eval-runs/{run['id']}/samples/download-urls", json={"items": [{"path": path} for path in sizes]}
    )["items"]
    for item in urls:
        fetched = ready.anonymous.get("/" + item["url"].split("/", 3)[3])
        assert fetched.status_code == 200
        assert len(fetched.content) == sizes[item["path"]], item["path"]
        if item["path"].startswith("trajectories/"):
            document = Trajectory.model_validate_json(fetched.content)
            assert document.session_id in ("r-0-0", "r-3-0")
            assert document.extra.osmosis["scores"]["reward"]["value"] == document.extra.osmosis["reward"]
    narrow = ready.json("GET", f"eval-runs/{run['id']}/samples/manifest?types=trajectories,artifacts&rows=1-2,3")
    assert [file["path"] for file in narrow["files"]] == [
        "trajectories/row_3_run_0.json",
        "artifacts/row_3_run_0/plot.txt",
    ]
    page = ready.http.get(f"/runs/{run['id']}/rollouts/3/0").text
    (link,) = re.findall(r'<a href="(/api/objects/[^"]+)" download>plot.txt</a>', page)
    assert ready.anonymous.get(html.unescape(link)).text == "drawn"
    assert 'id="artifacts"' not in ready.http.get(f"/runs/{run['id']}/rollouts/0/0").text
    for bad in ("types=odd", "rows=x", "rows=1-"):
        ready.json("GET", f"eval-runs/{run['id']}/samples/manifest?{bad}", expect=400)


OUTSIDE = [
    "artifacts/../../../master.key",
    "artifacts/row_0_run_0/../../../../../../master.key",
    "artifacts/row_0_run_0/link",
    "../../master.key",
    "trajectories/row_9_run_0.json",
]


def test_no_path_leads_out_of_a_run(ready) -> None:
    run = finished(ready, a_rollout(0))
    folder = ready.platform.settings.runs_dir / run["id"] / "artifacts" / "r-0-0" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(ready.platform.settings.data_dir / "master.key")
    wanted = {"items": [{"path": path} for path in OUTSIDE]}
    for item in ready.json("POST", f"eval-runs/{run['id']}/samples/download-urls", json=wanted)["items"]:
        answer = ready.anonymous.get("/" + item["url"].split("/", 3)[3])
        assert answer.status_code in (403, 404), item


def test_a_rollout_id_cannot_name_a_folder_elsewhere(ready) -> None:
    run = finished(ready, a_rollout(0, rollout_id="../../../elsewhere"))
    folder = ready.platform.settings.data_dir / "elsewhere" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "file.txt").write_text("not of this run")
    (ready.platform.settings.runs_dir / run["id"] / "artifacts").mkdir(parents=True)
    manifest = ready.json("GET", f"eval-runs/{run['id']}/samples/manifest?types=artifacts")
    assert manifest["files"] == []


def test_log_pages_lead_back_and_forth(ready) -> None:
    name = submit(ready)["name"]
    with ready.platform.db.write() as session:
        run_id = session.scalars(sa.select(tables.Run.id)).one()
        for number in range(9):
            lifecycle.log(session, session.get_one(tables.Run, run_id), f"line {number}")
    newest = ready.json("GET", f"eval-runs/{name}/logs?limit=4")
    assert [line["message"] for line in newest["logs"]] == [f"line {n}" for n in (5, 6, 7, 8)]
    assert {"timestamp", "level", "step", "message"} <= set(newest["logs"][0])
    older = ready.json("GET", f"eval-runs/{name}/logs?limit=4&cursor={newest['next_cursor']}")
    assert [line["message"] for line in older["logs"]] == [f"line {n}" for n in (1, 2, 3, 4)]
    last = ready.json("GET", f"eval-runs/{name}/logs?limit=4&cursor={older['next_cursor']}")
    assert last["logs"][0]["message"].startswith("submitted: ")
    assert last["next_cursor"] is None
    start = older["logs"][0]
    newer = ready.json("GET", f"eval-runs/{name}/logs?limit=200&direction=newer&cursor={last['latest_cursor']}")
    assert newer["logs"][0] == older["logs"][0] == start
    assert newer["next_cursor"] is None
    following = f"eval-runs/{name}/logs?direction=newer&cursor={newer['latest_cursor']}"
    assert ready.json("GET", following)["logs"] == []
    assert ready.json("GET", following)["latest_cursor"] == newer["latest_cursor"]
    for bad in ("limit=201", "direction=up", "cursor=x"):
        ready.json("GET", f"eval-runs/{name}/logs?{bad}", expect=400)


# --- stop, retry, delete ---


def test_a_pending_run_stops_at_once(ready) -> None:
    name = submit(ready)["name"]
    assert ready.json("POST", f"eval-runs/{name}/stop", json={})["status"] == "stopped"
    assert ready.json("POST", f"eval-runs/{name}/stop", json={})["status"] == "stopped"
    with ready.platform.db.write() as session:
        assert queue.claim(session, a_worker(session), 60) is None


def test_retry_repeats_what_failed_and_keeps_the_rest(ready) -> None:
    failure = Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message="too slow")
    failed = a_rollout(1, status=RolloutStatus.FAILED, scores={}, failure=failure)
    skipped = a_rollout(2, status=RolloutStatus.SKIPPED)
    run = finished(ready, a_rollout(0), failed, skipped, a_rollout(3))
    answer = ready.json("POST", f"eval-runs/{run['id']}/retry", json={})
    assert (answer["status"], answer["retryable_samples"]) == ("pending", 2)
    assert {"id", "name", "workflow_id", "platform_url"} <= set(answer)
    left = ready.json("GET", f"eval-runs/{run['id']}/rollouts")["rollouts"]
    assert [r["row_index"] for r in left] == [0, 3]
    ready.json("POST", f"eval-runs/{run['id']}/retry", expect=409, json={})


def test_retry_of_a_run_without_failures_repeats_what_succeeded_only_when_told(ready) -> None:
    run = finished(ready, *(a_rollout(n) for n in range(4)))
    for body in ({}, {"everything": False}, None):
        refused = ready.json("POST", f"eval-runs/{run['id']}/retry", expect=409, json=body)
        assert (refused["code"], refused["rollouts"]) == ("NOTHING_TO_RETRY", 4)
    assert ready.json("GET", f"eval-runs/{run['id']}")["eval_run"]["status"] == "finished"
    assert ready.json("GET", f"eval-runs/{run['id']}/rollouts")["total_count"] == 4
    again = ready.json("POST", f"eval-runs/{run['id']}/retry", json={"everything": True})
    assert again["retryable_samples"] == 0
    assert ready.json("GET", f"eval-runs/{run['id']}/rollouts")["total_count"] == 0


def test_retry_of_a_stopped_run_makes_the_rest(ready) -> None:
    run = finished(ready, a_rollout(0), a_rollout(1), status=RunStatus.STOPPED)
    assert ready.json("POST", f"eval-runs/{run['id']}/retry")["retryable_samples"] == 2
    assert ready.json("GET", f"eval-runs/{run['id']}/rollouts")["total_count"] == 2


def test_retry_asks_for_values_that_were_given_with_the_run(ready) -> None:
    run = finished(ready, a_rollout(0), secrets={"required": ["KEY"], "provided": {"KEY": "v"}})
    refused = ready.json("POST", f"eval-runs/{run['id']}/retry", expect=400, json={})
    assert refused["run_secret_names"] == ["KEY"]
    ready.json("POST", f"eval-runs/{run['id']}/retry", expect=400, json={"secrets": {"KEY": "v", "OTHER": "v"}})
    ready.json("POST", f"eval-runs/{run['id']}/retry", json={"secrets": {"KEY": "again"}})
    assert ready.json("GET", f"eval-runs/{run['id']}")["resolved_secret_scopes"] == {"KEY": "run"}


def test_delete_needs_a_run_that_is_over(ready) -> None:
    running = submit(ready)
    ready.json("DELETE", f"eval-runs/{running['id']}", expect=409)
    ready.json("POST", f"eval-runs/{running['id']}/stop", json={})
    run = finished(ready, a_rollout(0))
    folder = ready.platform.settings.runs_dir / run["id"]
    folder.mkdir(parents=True)
    ready.json("DELETE", f"eval-runs/{run['id']}", expect=204)
    ready.json("GET", f"eval-runs/{run['id']}", expect=404)
    assert not folder.exists()
    assert ready.only(sa.select(sa.func.count()).select_from(tables.Rollout)) == 0


def test_a_dataset_in_use_cannot_be_deleted(ready) -> None:
    name = submit(ready)["name"]
    ready.json("DELETE", "datasets/sums", expect=409)
    ready.json("POST", f"eval-runs/{name}/stop", json={})
    ready.json("DELETE", "datasets/sums", expect=204)
    assert "deleted" in ready.json("POST", f"eval-runs/{name}/retry", expect=409)["message"]


def test_a_run_keeps_the_dataset_version_it_was_submitted_with(ready) -> None:
    before = row_of(ready, submit(ready)["id"])
    dataset = ready.json("GET", "datasets/sums")
    ready.upload("sums", b'{"user_prompt":"q","ground_truth":"9"}\n' * 5, overwrite_dataset_id=dataset["id"])
    after = row_of(ready, before.id)
    assert after.dataset_path == before.dataset_path
    with open(ready.platform.settings.located(after.dataset_path), "rb") as file:
        assert len(file.readlines()) == 40


# --- what is not there ---


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("models/base", "models"),
        ("models/lora", "models"),
        ("deployments", "deployments"),
        ("benchmarks", "benchmarks"),
        ("benchmark-runs", "benchmark_runs"),
    ],
)
def test_lists_of_what_this_platform_has_none_of_are_empty(shared, path, key) -> None:
    answer = shared.json("GET", path)
    assert (answer[key], answer["total_count"], answer["has_more"]) == ([], 0, False)


def test_an_unknown_path_and_a_malformed_body_have_the_same_error_shape(shared) -> None:
    for answer in (
        shared.http.get("/api/cli/no-such-thing"),
        shared.http.post("/api/cli/eval-runs", content=b"{"),
        shared.http.post("/api/cli/eval-runs", json=[1]),
        shared.http.get("/api/cli/eval-runs/unknown"),
    ):
        assert answer.status_code in (400, 404)
        found = answer.json()
        assert found["error"] == found["message"]
        assert found["code"] in ("VALIDATION", "NOT_FOUND")
