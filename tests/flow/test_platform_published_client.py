"""The client of generation 0.3 that people have installed, driven as a black box against this platform."""

import importlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from uv import find_uv_bin

from osmosis.platform import tables
from osmosis.platform.db import Database
from osmosis.platform.settings import PlatformSettings
from support import RUN
from support.command_line import run_command
from support.model_files import write_adapter
from support.platform_process import PlatformProcess, until
from support.published_client import install_published_client, python_for_it
from support.training_platform import JOB, TrainingPlatform, git, training_platform, without_a_model
from support.waiting import until as until_true

pytestmark = [pytest.mark.network, pytest.mark.slow]

CONFIG = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "sums"

[evaluation]
limit = 6

[secrets]
required = ["API_KEY"]

[env]
FAKE_JOB = "wait:2"
"""
ROW = '{"system_prompt": "s", "user_prompt": "q", "ground_truth": "1"}\n'


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_published_client(tmp_path_factory.mktemp("published"))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    process = PlatformProcess(tmp_path / "data")
    process.start()
    process.login()
    yield process
    process.terminate()


@pytest.fixture
def workspace(tmp_path: Path, platform: PlatformProcess) -> Path:
    """A checkout whose fetch URL the client accepts and whose pushes come to us."""
    folder = tmp_path / "workspace"
    platform.prepare(folder)
    repository = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]
    for args in (
        ["remote", "add", "origin", f"https://github.com/{repository['repo_full_name']}.git"],
        ["remote", "set-url", "--push", "origin", repository["url"]],
    ):
        subprocess.run(["git", *args], cwd=folder, check=True)
    for name in ("configs/eval", "configs/training", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / "more.jsonl").write_text(ROW * 5)
    (folder / "configs" / "eval" / "multiply.toml").write_text(CONFIG)
    return folder


@pytest.fixture
def client(tmp_path: Path, published: Path, platform: PlatformProcess, workspace: Path) -> Callable[..., Any]:
    return client_of(published, platform, workspace, tmp_path)


def client_of(
    published: Path, platform: PlatformProcess, workspace: Path, tmp_path: Path, **variables: str
) -> Callable[..., Any]:
    """Runs a command with `--json` and returns what it printed; the exit code must be the expected one."""
    (tmp_path / "home").mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        **platform.login_environ,
        "API_KEY": "value-for-the-test",
        **variables,
    }

    def run(*args: str, expect: int = 0) -> Any:
        done = subprocess.run(
            [str(published), "--json", *args], cwd=workspace, env=environ, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return json.loads((done.stdout or done.stderr).splitlines()[-1])

    return run


def test_who_am_i_datasets_and_secrets(client: Callable[..., Any], workspace: Path) -> None:
    assert client("auth", "whoami")["data"]["workspace"]["name"] == "demo"
    uploaded = client("dataset", "upload", "data/more.jsonl", "--yes")["resource"]
    assert (uploaded["status"], uploaded["row_count"]) == ("uploaded", 5)
    taken = client("dataset", "upload", "data/more.jsonl", "--yes", expect=1)
    assert taken["error"]["code"] == "CONFLICT"
    client("dataset", "upload", "data/more.jsonl", "--overwrite", "--yes")
    assert {row["file_name"] for row in client("dataset", "list")["items"]} == {"more", "sums"}
    assert client("dataset", "preview", "more")["data"]["returned_rows"] == 5
    client("dataset", "download", "more", "-o", "fetched.jsonl")
    assert (workspace / "fetched.jsonl").read_text() == ROW * 5
    assert client("dataset", "logs", "more")["items"]

    client("secret", "set", "API_KEY", "--env", "API_KEY", "--scope", "workspace")
    listed = client("secret", "list")
    assert [(row["name"], row["scope"]) for row in listed["items"]] == [("API_KEY", "workspace")]
    assert "value-for-the-test" not in str(listed)
    client("secret", "delete", "API_KEY", "--scope", "workspace", "--yes")
    assert client("secret", "list")["items"] == []


def test_an_eval_from_submit_to_download(
    client: Callable[..., Any], platform: PlatformProcess, workspace: Path
) -> None:
    assert [row["name"] for row in client("rollout", "list")["items"]] == ["multiply"]
    submitted = client("eval", "submit", "configs/eval/multiply.toml", "--yes")["resource"]
    name = submitted["name"]
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    row = client("eval", "list")["items"][0]
    assert (row["id"], row["status"]) == (submitted["id"], "running")
    assert row["summary"]["progress"] == {"completed": 2, "total": 6, "unit": "samples"}
    info = client("eval", "info", name)["data"]
    assert info["resolved_secret_scopes"] == {"API_KEY": "run"}
    assert info["metrics"]["summary"]["completed_samples"] == 2
    assert any("job started" in line["message"] for line in client("eval", "logs", name)["items"])

    client("eval", "stop", name, "--yes")
    platform.reaches(name, "stopped")
    assert client("eval", "info", name)["data"]["summary"]["graded"] == 2
    fetched = client("eval", "download", name, "--type", "all", "--yes")
    assert fetched["status"] == "success", fetched
    found = {path.name for path in (workspace / ".osmosis" / "evals" / name).rglob("*") if path.is_file()}
    assert {"metrics.json", "summary.jsonl", "logs.txt", "row_0_run_0.json", "row_1_run_0.json"} <= found


@pytest.fixture
def training(tmp_path: Path, trainer_cache: Path) -> Iterator[TrainingPlatform]:
    with training_platform(tmp_path, trainer_cache, job_command=JOB) as place:
        without_a_model(place)
        # A checkout whose fetch URL the client accepts and whose pushes come to us.
        repository = place.process.json("GET", "workspaces")["workspaces"][0]["connected_repo"]
        git(place.folder, "remote", "rename", "origin", "platform")
        git(place.folder, "remote", "add", "origin", f"https://github.com/{repository['repo_full_name']}.git")
        pushed_to = repository["url"].replace("://", f"://git:{place.process.token}@")
        git(place.folder, "remote", "set-url", "--push", "origin", pushed_to)
        yield place


async def test_a_training_run_from_submit_to_its_checkpoints(
    training: TrainingPlatform, published: Path, tmp_path: Path
) -> None:
    """Its trainer has no model; everything that this client sees is real."""
    client = client_of(published, training.process, training.folder, tmp_path)
    sent = client("train", "submit", "configs/training/add.toml", "--yes")["resource"]
    name = sent["name"]
    await until_true(lambda: client("train", "list")["items"][0]["status"] == "running", within=30, what="running")
    assert await training.until_over(name, within=200) == "finished", training.log(name)

    row = client("train", "list")["items"][0]
    assert (row["id"], row["name"], row["status"]) == (sent["id"], name, "finished")
    lines = client("train", "logs", name, "--limit", "200")["items"]
    assert any("checkpoint of step 4" in line["message"] for line in lines)
    info = client("train", "info", name)["data"]
    assert (info["training_run"]["status"], info["training_run"]["current_step"]) == ("finished", 4)
    assert [one["checkpoint_name"] for one in info["checkpoints"]] == [f"{name}-step-2", f"{name}-step-4"]
    curves = {curve["key"]: [point["step"] for point in curve["data"]] for curve in info["metrics"]["metrics"]}
    assert (curves["training_reward"], curves["validation_reward"]) == ([1, 2, 3, 4], [0, 2, 4])
    trained = client("model", "list")["lora_models"]["items"]
    assert {(one["model_name"], one["base_model"], one["checkpoint_step"]) for one in trained} == {
        (f"{name}-step-{step}", "tiny", step) for step in (2, 4)
    }

    again = client("train", "submit", "configs/training/add.toml", "--yes")["resource"]["name"]
    client("train", "stop", again, "--yes")
    assert await training.until_over(again, within=200) == "stopped", training.log(again)


WORKFLOW = """        import httpx

        from osmosis_ai.rollout.context import get_rollout_context

        rollout = get_rollout_context()
        body = {"model": "openai/osmosis-rollout", "messages": ctx.prompt}
        bearer = {"Authorization": f"Bearer {rollout.api_key}"}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            reply = await http.post(f"{rollout.chat_completions_url}/chat/completions", json=body, headers=bearer)
        return [*ctx.prompt, reply.raise_for_status().json()["choices"][0]["message"]]
"""
GRADER = "        ctx.set_reward(float(len(ctx.sample.messages[-1]['content']) % 2))\n"


def scaffold(client: Callable[..., Any], folder: Path) -> None:
    """Have the client make a rollout `demo`, fill in its two methods and the fields that its configs leave open."""
    client("rollout", "init", "demo")
    main = folder / "rollouts" / "demo" / "main.py"
    before, _, rest = main.read_text().partition("        # TODO: implement agent logic.")
    between, _, after = rest.partition("class MyGrader")
    assert "NotImplementedError" in between
    head, _, tail = after.partition("        # TODO: implement grading.")
    agent = f"{before.replace(') -> None:', '):')}{WORKFLOW}"
    main.write_text(f"{agent}\n\nclass MyGrader{head}{GRADER}\n\ndef main{tail.partition('def main')[2]}")
    settings = {
        "eval": [('"openai/gpt-5-mini"', '"offline/calculator"'), ('required = ["OPENAI_API_KEY"]', "required = []")],
        "training": [('"<your-model-path>"', '"tiny"'), ("[training]", TRAINING), ("[checkpoints]", CHECKPOINTS)],
    }
    for kind, changes in settings.items():
        config = folder / "configs" / kind / "demo.toml"
        text = config.read_text()
        for old, new in [('"<your-dataset-name>"', '"add"'), *changes]:
            assert old in text
            text = text.replace(old, new)
        config.write_text(text)


TRAINING = "[training]\nrollout_batch_size = 4\nn_samples_per_prompt = 4"
CHECKPOINTS = "[advanced]\nmax_steps = 2\n\n[checkpoints]\ncheckpoint_save_freq = 2"


async def test_its_own_scaffold_is_evaluated_and_trained_twice(
    training: TrainingPlatform, published: Path, tmp_path: Path
) -> None:
    """As `rollout init` makes it: pinned to its own generation, with a build system."""
    client = client_of(published, training.process, training.folder, tmp_path)
    scaffold(client, training.folder)
    training.push()
    await until_true(lambda: len(client("rollout", "list")["items"]) == 2, within=30, what="the push is synced")
    for _ in range(2):
        name = client("eval", "submit", "configs/eval/demo.toml", "--yes")["resource"]["name"]
        assert await training.until_over(name, "eval") == "finished", training.log(name, "eval")
        assert client("eval", "info", name)["data"]["summary"]["graded"] > 0
        name = client("train", "submit", "configs/training/demo.toml", "--yes")["resource"]["name"]
        assert await training.until_over(name) == "finished", training.log(name)


def test_its_own_scaffold_runs_here_and_is_uploaded_twice(
    training: TrainingPlatform, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run of the same name has nothing to do but to write to its log; the upload is taken all the same."""
    monkeypatch.setenv("PATH", f"{Path(find_uv_bin()).parent}:{os.environ['PATH']}")
    config = training.folder / "configs" / "eval" / "demo.toml"
    with subprocess.Popen([*RUN, "stand_in"], stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        model = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
        model |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "UV_PYTHON": str(python_for_it())}
        model |= {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}
        client = client_of(published, training.process, training.folder, tmp_path, **model)
        scaffold(client, training.folder)
        config.write_text(config.read_text().replace('"offline/calculator"', '"openai/gpt-4o-mini"'))
        git(training.folder, "add", "-A")
        words = ("eval", "run", "configs/eval/demo.toml", "--name", "here", "--dataset-file", "data/add.jsonl")
        try:
            for more in ([], ["--replace"]):
                client(*words, "--rows", "0-3", "--yes")
                sent = client("eval", "upload", "here", *more)["resource"]
                assert (sent["status"], sent["eval_run_name"]) == ("finalized", "here")
        finally:
            server.kill()
    assert training.row("here", "eval")["status"] == "finished"
    # Ours runs it, too: its environment is of the older generation, so that it is served from there.
    training.ok("config", "set", "configs/eval/demo.toml", "experiment.model_path", "offline/calculator")
    words = ("eval", "run", "demo", "--dataset-file", "data/add.jsonl", "--rows", "0-3")
    done = run_command(*words, "--json", cwd=training.folder, environ=model)
    assert done.code == 0, done.err
    assert done.json["data"]["summary"]["total_runs"] == 4


def test_every_name_that_a_rollout_can_import_from_it_is_there(published: Path) -> None:
    modules = ["", ".rollout", ".rollout.types", ".rollout.backend.local"]
    names = f"{{m: i.import_module('osmosis_ai' + m).__all__ for m in {modules}}}"
    code = f"import importlib as i, json; print(json.dumps({names}))"
    printed = subprocess.run([published.with_name("python"), "-c", code], capture_output=True, text=True, check=True)
    for module, names in json.loads(printed.stdout).items():
        ours = importlib.import_module(f"osmosis_ai{module}")
        assert [name for name in names if not hasattr(ours, name)] == [], module


def kept_run(folder: Path) -> None:
    """A local run of two rows as that client keeps one: the second rollout failed."""
    versions = {"rollout_protocol": "0.4", "dataset_normalization": 1, "state_schema": 1}
    inputs = {
        "model_path": "openai/gpt-5-mini",
        "dataset": {"sha256": "0" * 64, "selected_source_rows": "0-1"},
        "n": 1,
        "rollout": {"name": "multiply", "entrypoint": "main.py", "source_digest": "d" * 64},
        "env": {},
        "secret_names": [],
        "timeouts": {"agent_timeout_sec": None, "grader_timeout_sec": None},
        "versions": versions,
    }
    manifest = {"schema_version": 1, "local_run_id": "7" * 32, "run_name": "one", "inputs": inputs}
    manifest |= {"created_at": "2026-01-02T03:04:05Z", "provenance": {"sdk_version": "0.3.8"}}
    good = {"row_index": 0, "run_index": 0, "rollout_id": "a" * 32, "status": "success", "reward": 1.0}
    bad = {"row_index": 1, "run_index": 0, "rollout_id": "b" * 32, "status": "failed", "error_type": "agent_error"}
    rows = [
        {**good, "trajectory_filename": "trajectory.json", "tokens": 7, "duration_ms": 5.0},
        {**bad, "duration_ms": 1.0},
    ]
    document = {
        "schema_version": "ATIF-v1.7",
        "session_id": "a" * 32,
        "trajectory_id": "a" * 32,
        "agent": {"name": "osmosis-rollout-sdk", "version": "0.3.8"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "What is 6 times 7?"},
            {"step_id": 2, "source": "agent", "message": "42"},
        ],
        "final_metrics": {"total_steps": 2},
        "extra": {"osmosis": {"rollout_id": "a" * 32, "request_extra_fields": {"row_index": 0, "run_index": 0}}},
    }
    trial = folder / "rollout_trials" / ("a" * 32)
    (trial / "artifacts").mkdir(parents=True)
    (trial / "artifacts" / "note.txt").write_text("because")
    (trial / "trajectory.json").write_text(json.dumps(document))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "progress.json").write_text('{"total_runs": 2, "sampled_rows": 2, "total_dataset_rows": 2}')
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("index.jsonl", "summary.jsonl", "events.jsonl"):
        (folder / name).write_text(lines)
    eval_run = {"id": "7" * 32, "name": "one", "status": "finished", "started_at": "2026-01-02T03:04:05Z"}
    eval_run |= {"completed_at": "2026-01-02T03:05:05Z", "dataset_name": "sums"}
    eval_run |= {"model_name": inputs["model_path"], "rollout_name": "multiply", "duration_ms": 60000.0}
    (folder / "metrics.json").write_text(json.dumps({"eval_run": eval_run, "summary": {"pass_threshold": 1.0}}))
    (folder / "logs.txt").write_text("2026-01-02T03:04:05Z INFO [run] one: 2 of 2 work items pending\n")


def test_a_run_made_by_that_client_is_uploaded(
    client: Callable[..., Any], platform: PlatformProcess, workspace: Path
) -> None:
    kept_run(workspace / ".osmosis" / "evals" / "one")
    sent = client("eval", "upload", "one")["resource"]
    assert (sent["status"], sent["eval_run_name"]) == ("finalized", "one")
    assert platform.json("GET", "eval-runs/one/rollouts/0/0")["messages"][1]["content"] == "42"
    paths = {file["path"] for file in platform.json("GET", "eval-runs/one/samples/manifest")["files"]}
    assert {"artifacts/row_0_run_0/note.txt", "trajectories/row_0_run_0.json"} <= paths


def test_lists_of_what_there_is_none_of(client: Callable[..., Any]) -> None:
    assert client("train", "list")["items"] == []
    assert client("model", "list")["lora_models"]["items"] == []
    assert client("benchmark", "list")["items"] == []
    assert client("benchmark", "runs", "list")["items"] == []


def add_checkpoint(platform: PlatformProcess) -> None:
    """What a training run `multiply-9` left: one checkpoint on the base model `tiny`."""
    settings = PlatformSettings(data_dir=platform.data_dir, environ={})
    database = Database(settings.database)
    with database.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        session.add(tables.BaseModel(workspace_id=workspace.id, name="tiny", status="ready", files=[]))
        run = tables.Run(
            workspace_id=workspace.id, kind="training", name="multiply-9", status="finished", rollout="multiply",
            model_path="tiny", dataset="sums", dataset_path="", commit_sha="0" * 40, rows=[], secret_scopes={},
            config={"experiment": {"rollout": "multiply", "model_path": "tiny", "dataset": "sums"}},
        )  # fmt: skip
        session.add(run)
        session.flush()
        folder = write_adapter(settings.models_dir / "runs" / run.id / "step-4")
        session.add(
            tables.Checkpoint(
                run_id=run.id, name="multiply-9-step-4", step=4, status="ready", base_model="tiny",
                path=settings.stored(folder), reward=0.75,
            )
        )  # fmt: skip
    database.close()


def test_a_model_is_deployed_listed_and_undeployed(client: Callable[..., Any], platform: PlatformProcess) -> None:
    add_checkpoint(platform)
    deployed = client("model", "deploy", "multiply-9-step-4")
    assert "multiply-9-step-4" in json.dumps(deployed)
    assert "active" in json.dumps(deployed)
    (row,) = client("model", "list")["lora_models"]["items"]
    assert (row["model_name"], row["deployment_status"]) == ("multiply-9-step-4", "active")
    assert "tiny:multiply-9-step-4" in json.dumps(client("model", "info", "multiply-9-step-4"))
    undeployed = client("model", "undeploy", "multiply-9-step-4")
    assert "inactive" in json.dumps(undeployed)
    assert platform.json("GET", "models/multiply-9-step-4")["deployment_status"] == "inactive"


BENCHMARK = """
[experiment]
benchmark = "multiply"

[[agents]]
model = { type = "provider", model = "offline/calculator", api_key_secret = "API_KEY" }

[[agents]]
harness = "mini-swe-agent"
env = { LEVEL = "2" }

[agents.model]
type = "endpoint"
base_url = "http://127.0.0.1:9/v1"
model = "m"
api_key_secret = "API_KEY"
extra_headers = { X-Team = "a" }

[tasks]
categories = ["a"]

[execution]
attempts_per_task = 2
max_retries = 1
judge_model = "offline/judge"
judge_api_key_secret = "API_KEY"

[verifier]
required = ["API_KEY"]

[secrets]
required = ["TOOL_KEY"]
"""


def test_a_benchmark_from_submit_to_download(
    client: Callable[..., Any], platform: PlatformProcess, workspace: Path
) -> None:
    rows = [{"user_prompt": "q", "ground_truth": "1", "task": f"t{n}", "category": "ab"[n % 2]} for n in range(6)]
    (workspace / "data" / "multiply.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    client("dataset", "upload", "data/multiply.jsonl", "--yes")
    client("secret", "set", "API_KEY", "--env", "API_KEY", "--scope", "workspace")
    folder = workspace / "configs" / "benchmark"
    folder.mkdir()
    (folder / "multiply.toml").write_text(BENCHMARK)
    (row,) = client("benchmark", "list")["items"]
    assert (row["key"], row["task_count"], row["category_count"]) == ("multiply", 6, 2)
    (workspace / "given.env").write_text("TOOL_KEY=value-for-this-run\n")
    submit = ("benchmark", "submit", "configs/benchmark/multiply.toml", "--yes", "--secrets-file", "given.env")
    submitted = client(*submit)["resource"]
    name = submitted["name"]
    assert (submitted["task_count"], submitted["workflow_id"]) == (3, submitted["id"])
    for number in (1, 2):
        platform.reaches(f"{name}-agent-{number}", "finished")
    (listed,) = client("benchmark", "runs", "list")["items"]
    assert (listed["status"], listed["benchmark_name"], listed["agent_count"]) == ("finished", "multiply", 2)
    assert (listed["ingested_results"], listed["expected_results"], listed["best_pass_at_1"]) == (12, 12, 1.0)
    detail = client("benchmark", "runs", "info", name)["data"]
    assert {agent["status"] for agent in detail["agents"]} == {"finished"}
    assert [metrics["rank"] for metrics in detail["agent_metrics"]] == [1, 1]
    assert client("benchmark", "runs", "logs", name)["items"]
    info = client("benchmark", "info", "multiply")["data"]
    assert (info["runs_total_count"], info["benchmark"]["tasks"][1]["category"]) == (1, "b")
    fetched = client("benchmark", "runs", "download", name, "--type", "all", "--yes")
    assert fetched["status"] == "success", fetched
    files = {path.name for path in (workspace / ".osmosis" / "benchmarks" / name).rglob("*") if path.is_file()}
    assert files >= {"summary.csv", "results.csv", "logs.txt", "row_0_run_0.json"}

    (folder / "multiply.toml").write_text(
        BENCHMARK.replace('["TOOL_KEY"]', "[]").replace("[execution]", '[env]\nFAKE_JOB = "wait:1"\n[execution]')
    )
    second = client(*submit[:4])["resource"]["name"]
    client("benchmark", "runs", "stop", second, "--yes")
    for number in (1, 2):
        platform.reaches(f"{second}-agent-{number}", "stopped")
    (folder / "multiply.toml").write_text(BENCHMARK.replace('categories = ["a"]', 'task_set = "parity"'))
    error = client(*submit, expect=1)["error"]
    assert (error["code"], "tasks.task_set" in json.dumps(error)) == ("VALIDATION", True)


def test_a_config_the_platform_refuses_says_which_key(client: Callable[..., Any], workspace: Path) -> None:
    config = workspace / "configs" / "eval" / "multiply.toml"
    config.write_text(CONFIG.replace("limit = 6", 'limit = 6\nn = "three"'))
    refused = client("eval", "submit", "configs/eval/multiply.toml", "--yes", expect=1)
    assert refused["error"]["code"] == "VALIDATION"
    assert "evaluation.n" in json.dumps(refused)
