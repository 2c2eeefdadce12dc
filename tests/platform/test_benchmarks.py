"""Benchmarks over the wire: tasks, what a submit makes of a config, figures, files."""

import csv
import json
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import undefer

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.scheduling import queue
from osmosis.records.run.job import JobResult
from osmosis.records.run.report import Interval, Report, ScoreReport
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.status import RunStatus
from support.platform_data import a_worker

from .conftest import Site, path_of

TASKS = "".join(
    json.dumps({"user_prompt": f"{n} x 2?", "ground_truth": str(n), "task": f"t{n}", "category": "ab"[n % 2]}) + "\n"
    for n in range(6)
)
HARBOR = "".join(
    json.dumps({"user_prompt": "q", "ground_truth": "1", "metadata": {"task_name": f"t{n}"}}) + "\n" for n in range(4)
)
CALCULATOR = {"type": "provider", "model": "offline/calculator"}
ENDPOINT = {"type": "endpoint", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
ECHO = {"type": "provider", "model": "offline/echo", "api_key_secret": "ECHO_KEY"}


def prepared(site: Site) -> Site:
    site.upload("multiply", TASKS.encode())
    for name in ("ECHO_KEY", "VERIFIER_KEY", "TOOL_KEY"):
        body = {"name": name, "value": "v", "scope": "workspace"}
        site.json("POST", "environment-secrets", json=body)
    return site


@pytest.fixture
def site(ready: Site) -> Site:
    return prepared(ready)


@pytest.fixture(scope="module")
def looked_at(shared: Site) -> Site:
    """As `site`, for tests that only look or are refused."""
    return prepared(shared)


def body(*agents: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {
        "experiment_config": {"benchmark": "multiply"},
        "agents": list(agents or ({"model": CALCULATOR},)),
        **sections,
    }


def submit(site: Site, *agents: dict[str, Any], expect: int = 200, **sections: Any) -> dict[str, Any]:
    answer: dict[str, Any] = site.json("POST", "benchmark-runs", expect=expect, json=body(*agents, **sections))
    return answer


def evaluations(site: Site) -> list[tables.Run]:
    return site.stored(sa.select(tables.Run).order_by(tables.Run.name).options(undefer(tables.Run.rows)))


def finish(site: Site, rates: dict[str, float]) -> None:
    """End the next runs with a rollout each; `rates`: pass rates by the name of the run."""
    with site.platform.db.write() as session:
        worker = a_worker(session)
        for _ in rates:
            run = queue.claim(session, worker, 60).run
            score = ScoreReport(
                name="reward", passed=1, scored=2, failed=0, pass_rate=rates[run.name],
                pass_rate_interval=Interval(low=0.1, high=0.9),
            )  # fmt: skip
            report = Report(
                rows=len(run.rows), attempts=1, pass_threshold=1.0, total=6, completed=6, succeeded=6, failed=0,
                skipped=0, coverage=1.0, scores=[score], usage=Usage(prompt_tokens=30, completion_tokens=30),
            )  # fmt: skip
            scores = {"reward": Score(name="reward", value=1.0)}
            rollout = Rollout(rollout_id="r", row_index=2, attempt=0, status=RolloutStatus.SUCCESS, scores=scores)
            rollouts.store(session, run.id, [rollout])
            lifecycle.end(session, run, JobResult(status=RunStatus.FINISHED, report=report), "done")


def test_a_rollout_with_a_dataset_of_its_name_is_a_benchmark(looked_at: Site) -> None:
    listed = looked_at.json("GET", "benchmarks")
    (row,) = listed["benchmarks"]
    assert (row["source_ref"], row["task_count"], row["category_count"]) == ("multiply", 6, 2)
    detail = looked_at.json("GET", "benchmarks/multiply")
    assert detail["leaderboard"] == []
    assert detail["benchmark"]["categories"] == [{"name": "a", "task_count": 3}, {"name": "b", "task_count": 3}]
    assert detail["benchmark"]["tasks"][1] == {"name": "t1", "category": "b"}
    assert "a synced rollout with a dataset of its name" in looked_at.json("GET", "benchmarks/sums", expect=404)["hint"]


def test_each_agent_becomes_an_evaluation_of_the_same_tasks(site: Site) -> None:
    execution = {"attempts_per_task": 2, "timeout_multiplier": 2, "pass_threshold": 0.5, "max_concurrent_attempts": 3}
    judge = {"judge_model": "openai/judge", "judge_api_key_secret": "JUDGE_KEY", "verifier_secrets": ["VERIFIER_KEY"]}
    answer = submit(
        site,
        {"model": CALCULATOR, "env": {"LEVEL": "2"}},
        {"model": ECHO, "harness": "codex"},
        tasks_config={"categories": ["a"]},
        execution_config={**execution, **judge},
        env_config={"LEVEL": "1", "MODE": "x"},
        secrets={"required": ["TOOL_KEY"], "provided": {"JUDGE_KEY": "given"}},
    )
    assert answer.keys() >= {"id", "name", "status", "created_at", "platform_url", "workflow_id"}
    assert (answer["name"], answer["status"], answer["task_count"]) == ("multiply-benchmark-1", "pending", 3)
    own, program = evaluations(site)
    assert [own.name, program.name] == ["multiply-benchmark-1-agent-1", "multiply-benchmark-1-agent-2"]
    assert own.rows == program.rows == [0, 2, 4]
    assert own.commit_sha == program.commit_sha
    assert own.config["experiment"]["entrypoint"] == "main.py"
    assert program.config["experiment"]["command"] == "codex"
    assert program.config["program"] == {"env": ["TOOL_KEY"]}
    assert own.config["evaluation"].items() >= {"n": 2, "batch_size": 3, "pass_threshold": 0.5}.items()
    assert own.config["evaluation"]["agent_workflow_timeout_s"] == 900
    judge_variables = {"JUDGE_MODEL": "openai/judge", "JUDGE_API_KEY_ENV": "JUDGE_KEY", "MODE": "x"}
    assert own.config["env"] == {**judge_variables, "LEVEL": "2"}
    assert program.config["env"] == {**judge_variables, "LEVEL": "1"}
    assert program.config["advanced"]["api_key_env"] == "ECHO_KEY"
    assert own.secret_scopes == {"TOOL_KEY": "workspace", "JUDGE_KEY": "run", "VERIFIER_KEY": "workspace"}
    assert program.secret_scopes == {**own.secret_scopes, "ECHO_KEY": "workspace"}
    assert submit(site)["name"] == "multiply-benchmark-2"


def test_headers_retries_and_a_set_of_tasks_reach_the_evaluations(site: Site) -> None:
    rows = "".join(
        json.dumps({**json.loads(line), "task_set": "parity" if '"t3"' in line else ""}) + "\n"
        for line in TASKS.splitlines()
    )
    site.upload("multiply", rows.encode(), overwrite_dataset_id=site.json("GET", "datasets/multiply")["id"])
    assert site.json("GET", "benchmarks/multiply")["benchmark"]["task_sets"] == ["parity"]
    cursor = {"harness": "cursor-cli", "harness_api_key_secret": "CURSOR_API_KEY"}
    submit(
        site,
        {"model": {**ENDPOINT, "extra_headers": {"X-Team": "a"}}},
        {"model": CALCULATOR, **cursor},
        tasks_config={"task_set": "parity"},
        execution_config={"max_retries": 2, "verifier_secrets": ["VERIFIER_KEY"]},
        secrets={"required": [], "provided": {"CURSOR_API_KEY": "given"}},
    )
    own, program = evaluations(site)
    assert own.rows == program.rows == [3]
    assert own.config["evaluation"]["max_retries"] == 2
    assert own.config["advanced"]["params"] == {"extra_headers": {"X-Team": "a"}}
    assert program.config["program"] == {"env": ["CURSOR_API_KEY"]}
    assert set(program.secret_scopes) == {"VERIFIER_KEY", "CURSOR_API_KEY"}


def test_the_harness_of_harbor_tasks_is_for_the_rollout(site: Site) -> None:
    site.upload("multiply", HARBOR.encode(), overwrite_dataset_id=site.json("GET", "datasets/multiply")["id"])
    submit(site, {"model": CALCULATOR, "harness": "terminus-2"}, tasks_config={"task_names": ["t3"]})
    (run,) = evaluations(site)
    assert (run.config["experiment"]["entrypoint"], run.rows) == ("main.py", [3])
    assert run.config["env"] == {"HARBOR_AGENT": "terminus-2"}


@pytest.mark.parametrize(
    ("agents", "sections", "key"),
    [
        ([{"model": CALCULATOR}] * 9, {}, "agents"),
        ([{"model": {"type": "endpoint", "model": "m"}}], {}, "agents.0.model.base_url"),
        ([{"model": {**CALCULATOR, "extra_headers": {"X-A": "b"}}}], {}, "agents.0.model.extra_headers"),
        (
            [{"model": {**ENDPOINT, "extra_headers": {"authorization": "b"}}}],
            {},
            "agents.0.model.extra_headers.authorization",
        ),
        ([{"model": CALCULATOR, "harness": "cursor-cli"}], {}, "agents.0.harness_api_key_secret"),
        ([{"model": {**CALCULATOR, "base_model": "tiny"}}], {}, "agents.0.model.base_model"),
        ([{"model": CALCULATOR, "harness_api_key_secret": "CURSOR_API_KEY"}], {}, "agents.0.harness_api_key_secret"),
        ([{"model": ECHO, "env": {"ECHO_KEY": "x"}}], {}, "env.ECHO_KEY"),
        ([{"model": {"type": "hosted", "base_model": "tiny"}}], {}, "experiment.model_path"),
        ([], {"tasks_config": {"task_set": "parity"}}, "tasks.task_set"),
        ([], {"tasks_config": {"task_set": "easy"}}, "tasks.task_set"),
        ([], {"tasks_config": {"task_names": ["t1", "none"]}}, "tasks.task_names"),
        ([], {"tasks_config": {"task_names": ["t1"], "categories": ["a"]}}, "tasks"),
        ([], {"execution_config": {"max_retries": 1000}}, "execution.max_retries"),
        ([], {"unknown_config": {}}, "unknown_config"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_key(
    looked_at: Site, agents: list[dict[str, Any]], sections: dict[str, Any], key: str
) -> None:
    refused = submit(looked_at, *agents, expect=400, **sections)
    assert [issue["key"] for issue in refused["issues"]] == [key]
    assert refused["hint"]
    assert evaluations(looked_at) == []


def test_all_agents_are_submitted_or_none(looked_at: Site) -> None:
    refused = submit(looked_at, {"model": CALCULATOR}, {"model": {**ECHO, "api_key_secret": "NOBODY"}}, expect=404)
    assert refused["message"] == "Secret(s) not found: NOBODY"
    assert (evaluations(looked_at), looked_at.json("GET", "benchmark-runs")["benchmark_runs"]) == ([], [])


def test_runs_agents_and_the_leaderboard(site: Site) -> None:
    submit(site, {"model": CALCULATOR}, {"model": ECHO, "harness": "codex"})
    finish(site, {"multiply-benchmark-1-agent-1": 0.25, "multiply-benchmark-1-agent-2": 0.75})
    submit(site, {"model": CALCULATOR}, tasks_config={"task_names": ["t1"]})
    finish(site, {"multiply-benchmark-2-agent-1": 1.0})
    newest, run = site.json("GET", "benchmark-runs?benchmark=multiply")["benchmark_runs"]
    assert (newest["status"], newest["best_pass_at_1"]) == ("finished", 1.0)
    assert (run["name"], run["agent_count"], run["best_pass_at_1"]) == ("multiply-benchmark-1", 2, 0.75)
    assert (run["expected_results"], run["benchmark_name"]) == (12, "multiply")
    detail = site.json("GET", f"benchmark-runs/{run['id']}")
    assert [(agent["rank"], agent["agent_index"]) for agent in detail["agents"]] == [(1, 1), (2, 0)]
    best = detail["agent_metrics"][0]
    assert (best["harness"], best["pass_at_1"]) == ("codex", {"value": 0.75, "low": 0.1, "high": 0.9})
    assert best["tokens_per_task"] == 10
    leaderboard = site.json("GET", "benchmarks/multiply")["leaderboard"]
    assert [(row["rank"], row["harness"], row["pass_at_1"]["value"]) for row in leaderboard] == [
        (1, "codex", 0.75),
        (2, None, 0.25),
    ]
    assert site.json("GET", "benchmark-runs/multiply-benchmark-1/logs")["logs"]


def test_files_of_a_run(site: Site) -> None:
    submit(site, {"model": CALCULATOR}, {"model": ECHO})
    finish(site, {"multiply-benchmark-1-agent-1": 0.5, "multiply-benchmark-1-agent-2": 0.25})
    outputs = "benchmark-runs/multiply-benchmark-1/outputs"
    types = "summary,results,artifacts,logs"
    files = {file["path"]: file["size"] for file in site.json("GET", f"{outputs}/manifest?types={types}")["files"]}
    trajectory = "artifacts/multiply-benchmark-1-agent-2/trajectories/row_2_run_0.json"
    assert files.keys() >= {"summary.csv", "results.csv", "logs.txt", trajectory}
    items = [{"path": path} for path in files]
    contents = {}
    for item in site.json("POST", f"{outputs}/download-urls", json={"items": items})["items"]:
        contents[item["path"]] = site.anonymous.get(path_of(item["url"])).text
        assert len(contents[item["path"]].encode()) == files[item["path"]]
    summary, results = (list(csv.DictReader(contents[name].splitlines())) for name in ("summary.csv", "results.csv"))
    assert [row["pass_at_1_value"] for row in summary] == ["0.5", "0.25"]
    assert [(row["run_name"][-7:], row["row_index"], row["reward"]) for row in results] == [
        ("agent-1", "2", "1.0"),
        ("agent-2", "2", "1.0"),
    ]
    assert site.json("GET", f"{outputs}/manifest?types=metrics", expect=400)["hint"]


def test_a_run_is_stopped_with_all_of_its_agents(site: Site) -> None:
    submit(site, {"model": CALCULATOR}, {"model": ECHO})
    assert site.json("POST", "benchmark-runs/multiply-benchmark-1/stop", json={})["status"] == "stopped"
    assert {run.status for run in evaluations(site)} == {"stopped"}
    assert "osmosis benchmark list --runs" in site.json("GET", "benchmark-runs/none", expect=404)["hint"]
