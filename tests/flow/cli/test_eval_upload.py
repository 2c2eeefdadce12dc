"""A run made on this machine, uploaded with the command line to a real platform: shown, found again, replaced."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from osmosis.engine.journal import Journal
from osmosis.serve.server_process import free_port
from support.command_line import CommandRun, login_environ
from support.eval_project import ROLLOUT, SCORE, write_project
from support.git_workspace import GitWorkspace
from support.platform_app import RunningPlatform, running_platform

pytestmark = pytest.mark.slow

Run = Callable[..., CommandRun]

EVAL = "eval -m upload_agent:agent -d d.jsonl --eval-fn upload_score:exact --model offline/calculator --n 2"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path, platform: RunningPlatform) -> Run:
    """A command in a folder with an agent, a score function and five rows; logged in at the platform."""
    write_project(tmp_path, agent="upload_agent", score="upload_score", rows=5)
    return partial(platform.run, cwd=tmp_path, CI="1")


def test_an_uploaded_run_is_shown_with_its_own_figures(run: Run, tmp_path: Path, platform: RunningPlatform) -> None:
    assert run(*EVAL.split(), "--name", "first").code == 0
    sent = run("eval", "upload", "first")
    assert sent.code == 0, sent.err
    resource = sent.json["resource"]
    assert (resource["name"], resource["already"], resource["sent"]) == ("first", False, 13)

    journal = Journal(tmp_path / ".osmosis" / "runs" / "first")
    report = journal.report()
    info = run("eval", "info", "first").json["data"]
    assert info["report"] == report.to_dict()
    assert info["eval_run"]["status"] == "finished"
    assert run("eval", "list").json["items"][0]["name"] == "first"
    assert run("eval", "wait", "first").code == 0
    assert run("eval", "download", "first", "--type", "all", "-o", "fetched").code == 0
    fetched = {path.name for path in (tmp_path / "fetched").rglob("row_*.json")}
    assert fetched == {f"row_{row}_run_{attempt}.json" for row in range(5) for attempt in range(2)}
    for path in ("", "/config", "/rollouts", "/rollouts/0/1", "/logs"):
        page = httpx.get(resource["url"] + path, headers=platform.headers)
        assert page.status_code == 200, path
        assert "first" in page.text
    stored = next(iter(journal.rollouts()))
    with httpx.Client(base_url=platform.url, headers=platform.headers) as api:
        kept = api.get(f"/api/cli/eval-runs/first/rollouts/{stored.row_index}/{stored.attempt}").json()
    assert kept == json.loads(stored.to_line())

    assert run("eval", "upload", "first").json["resource"]["already"] is True
    refused = run("eval", "retry", "first", "--yes")
    assert refused.error["details"]["local_run"]["eval_run_name"] == "first"


def test_a_changed_run_is_replaced_only_when_asked(run: Run, tmp_path: Path) -> None:
    assert run(*EVAL.split(), "--name", "second").code == 0
    assert run("eval", "upload", "second").code == 0
    (tmp_path / "kinder_score.py").write_text(SCORE.replace("else 0.0", "else 0.5"))
    assert run("eval", "regrade", "second", "--eval-fn", "kinder_score:exact").code == 0
    refused = run("eval", "upload", "second")
    assert refused.error["code"] == "CONFLICT"
    assert "--replace" in refused.error["details"]["hint"]
    folder = str(Path(".osmosis") / "runs" / "second")
    replaced = run("eval", "upload", folder, "--replace")
    assert replaced.code == 0, replaced.err
    assert replaced.json["resource"]["name"] == "second"
    shown = run("eval", "info", "second").json["data"]["report"]["scores"][0]
    assert shown["min"] == 0.5
    assert [row["name"] for row in run("eval", "list").json["items"]].count("second") == 1


def test_a_run_that_is_not_over_stays_here(run: Run, tmp_path: Path) -> None:
    assert run(*EVAL.split(), "--name", "third").code == 0
    folder = tmp_path / ".osmosis" / "runs" / "third"
    Journal(folder).drop({next(Journal(folder).rollouts()).key})
    taken_up = run("eval", "upload", "third")
    assert taken_up.error["code"] == "CONFLICT"
    assert "eval resume third" in taken_up.error["details"]["hint"]
    shutil.move(folder / "report.json", folder / "gone.json")
    assert "has not finished" in run("eval", "upload", "third").error["message"]
    assert "third" not in [row["name"] for row in run("eval", "list").json["items"]]


def test_what_leaves_the_machine_names_none_of_its_folders(run: Run, tmp_path: Path, platform: RunningPlatform) -> None:
    assert run(*EVAL.split(), "--name", "fourth").code == 0
    assert run("eval", "upload", "fourth").code == 0
    with httpx.Client(base_url=platform.url, headers=platform.headers) as api:
        known = api.get("/api/cli/eval-runs/fourth").text + api.get("/api/cli/eval-runs/fourth/rollouts/0/0").text
    assert str(tmp_path) not in known


def test_a_config_run_here_is_uploaded_when_it_is_over(run: Run, tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path)
    workspace.write("rollouts/multiply/main.py", ROLLOUT)
    (tmp_path / "d.jsonl").rename(tmp_path / "data" / "multiply.jsonl")
    words = ("eval", "run", "multiply", "--name", "fifth", "--limit", "4", "--upload")
    made = run(*words)
    assert made.code == 0, made.err
    uploaded = made.json["data"]["uploaded"]
    assert (uploaded["name"], uploaded["already"]) == ("fifth", False)
    shown = run("eval", "info", "fifth").json["data"]
    assert (shown["rollout"]["name"], shown["entrypoint"]) == ("multiply", "main.py")
    assert shown["report"]["total"] == 4
    again = run(*words).json["data"]["uploaded"]
    assert again["id"] == uploaded["id"]


def test_a_platform_that_is_gone_at_the_end_does_not_take_the_results(run: Run, tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path)
    workspace.write("rollouts/multiply/main.py", ROLLOUT)
    (tmp_path / "d.jsonl").rename(tmp_path / "data" / "multiply.jsonl")
    gone = f"http://127.0.0.1:{free_port()}"
    words = ("eval", "run", "multiply", "--name", "sixth", "--limit", "4", "--upload")
    made = run(*words, **login_environ(gone, "t"))
    assert made.code == 1
    assert made.json["data"]["summary"]["completed_runs"] == 4
    assert "osmosis eval upload sixth" in made.err + made.out
    assert run("eval", "upload", "sixth").code == 0
