"""A workspace and a real platform: init pushes, sync and status agree, failures say what to type and leave nothing."""

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osmosis._version import __version__
from osmosis.base.git import Git
from osmosis.cli.git_credential import answer
from osmosis.cli.main import main
from osmosis.client.credentials import CredentialStore, Login
from osmosis.workspace.git import make_snapshot, push_snapshot, read_source
from support.git_workspace import GitWorkspace
from support.platform_app import RunningPlatform, running_platform

pytestmark = pytest.mark.slow


@dataclass
class Person:
    """Somebody logged in at a platform, typing commands in a folder."""

    cwd: Path
    environ: dict[str, str]
    capsys: pytest.CaptureFixture[str]

    def run(self, line: str, *, cwd: Path | None = None) -> tuple[int, dict[str, Any]]:
        """The exit code and the JSON of a command: the result, or the error."""
        code = main([*line.split(), "--json"], environ=self.environ, cwd=cwd or self.cwd)
        out, err = self.capsys.readouterr()
        lines = [json.loads(text) for text in (out + err).splitlines() if text.startswith("{")]
        found = next((body for body in lines if "error" in body), None) or lines[-1]
        return code, found


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path / "data", workspace="other") as running:
        yield running


@pytest.fixture
def person(platform: RunningPlatform, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Person:
    environ = {
        "OSMOSIS_CONFIG_DIR": str(tmp_path / "config dir"),
        "OSMOSIS_DATA_DIR": str(tmp_path / "nothing"),
        "OSMOSIS_PLATFORM_URL": platform.url,
        "HOME": str(tmp_path),
    }
    CredentialStore(environ).save(Login(platform.url, platform.token, user={"handle": "local"}), store="file")
    cwd = tmp_path / "work"
    cwd.mkdir()
    return Person(cwd, environ, capsys)


def workspace_at(root: Path) -> GitWorkspace:
    found = GitWorkspace.__new__(GitWorkspace)
    found.root = root
    return found


def test_init_commits_pushes_and_is_in_sync(person: Person, platform: RunningPlatform) -> None:
    code, body = person.run("init demo")
    assert code == 0, body
    assert body["operation"] == "workspace.init"
    made = body["resource"]
    assert made["platform"]["repository"] == "local/demo"
    root = person.cwd / "demo"
    source = read_source(root)
    assert (source.identity, source.upstream, source.ahead) == ("local/demo", "origin/main", 0)
    assert platform.token not in (root / ".git" / "config").read_text()
    code, body = person.run("sync status", cwd=root)
    assert (code, body["data"]["in_sync"], body["data"]["differences"]) == (0, True, [])
    assert body["data"]["platform"]["commit_sha"] == made["commit"]


def test_what_a_sync_finds_beside_rollouts_is_in_its_status(person: Person) -> None:
    assert person.run("init demo")[0] == 0
    root = person.cwd / "demo"
    files = {
        "reward_fn/compute.py": "@osmosis_reward\ndef match(solution_str, ground_truth, extra_info=None): ...\n",
        "reward_rubric/judge.py": "@osmosis_rubric\ndef tone(solution_str, ground_truth, extra_info): ...\n",
        "mcp/tools/math.py": "@mcp.tool()\ndef multiply(a, b): ...\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    workspace_at(root).commit("the older layout")
    workspace_at(root).git("push", "-q")
    found = person.run("sync status", cwd=root)[1]["data"]["platform"]["found"]
    names = {one["kind"]: one["name"] for one in found if one["kind"] != "config"}
    assert names == {
        "mcp": "mcp.tools.math:multiply",
        "reward_fn": "reward_fn.compute:match",
        "reward_rubric": "reward_rubric.judge:tone",
    }


def test_a_submit_names_everything_that_stops_it_at_once(person: Person) -> None:
    assert person.run("init demo")[0] == 0
    root = person.cwd / "demo"
    workspace = workspace_at(root)
    assert person.run("rollout new multiply", cwd=root)[0] == 0
    workspace.commit("a rollout")
    config = root / "configs" / "eval" / "multiply.toml"
    good = config.read_text().partition("[secrets]")[0]
    secret = '\n[secrets]\nrequired = ["NOWHERE_TO_BE_FOUND"]\n'

    def keys(text: str) -> list[str]:
        config.write_text(text)
        code, body = person.run("eval submit multiply --yes", cwd=root)
        assert (code, body["error"]["code"]) == (1, "VALIDATION"), body
        issues = body["error"]["details"]["issues"]
        assert f"{len(issues)} problems" in body["error"]["message"], issues
        assert all(issue["message"] for issue in issues)
        return [issue["key"] for issue in issues]

    assert keys(good + secret) == ["unpushed", "no-dataset", "missing-secret"]
    wrong = keys(good.replace("# n = 1 ", 'n = "three"\nlimt = 3 ') + secret)
    assert wrong[:-3] == ["evaluation.n", "evaluation.limt"]
    assert wrong[-3:] == ["unpushed", "no-dataset", "missing-secret"]


def test_a_set_becomes_runs_that_share_a_tag(person: Person, platform: RunningPlatform) -> None:
    assert person.run("init demo")[0] == 0
    root = person.cwd / "demo"
    assert person.run("rollout new multiply --template multiply", cwd=root)[0] == 0
    sets = root / "configs" / "sets"
    sets.mkdir()
    (sets / "nightly.toml").write_text(
        'configs = ["multiply"]\nmodels = ["offline/calculator", "offline/echo"]\nmax_cost = 3.0\n'
    )
    workspace_at(root).commit("a rollout and a set")
    workspace_at(root).git("push", "-q")
    command = f"eval set nightly --on {platform.url} --yes"
    code, body = person.run(command, cwd=root)
    no_dataset = "this eval cannot run: no dataset named 'multiply' in workspace 'demo'"
    assert (code, [line["error"] for line in body["items"]]) == (1, [no_dataset] * 2)
    assert person.run("dataset upload data/multiply.jsonl", cwd=root)[0] == 0

    code, body = person.run(command, cwd=root)
    assert code == 0, body
    names = [f"nightly--multiply--offline-{model}" for model in ("calculator", "echo")]
    assert [(line["name"], line["status"]) for line in body["items"]] == [(name, "pending") for name in names]
    tagged = person.run("eval list --tag nightly", cwd=root)[1]["items"]
    assert {run["name"] for run in tagged} == set(names)
    info = person.run(f"eval info {names[1]}", cwd=root)[1]["data"]
    assert (info["config"]["model_path"], info["config"]["evaluation"]["max_cost"]) == ("offline/echo", 1.5)
    assert info["eval_run"]["tags"] == ["nightly"]
    assert person.run(command, cwd=root)[1]["items"][0]["platform_url"] == body["items"][0]["platform_url"]
    assert person.run("eval list --tag nightly", cwd=root)[1]["total_count"] == 2, (
        "what is there is not submitted again"
    )


def test_a_rollout_on_its_way_to_the_platform(person: Person) -> None:
    assert person.run("init demo")[0] == 0
    root = person.cwd / "demo"
    workspace = workspace_at(root)
    code, body = person.run("rollout new multiply --template multiply", cwd=root)
    assert (code, body["resource"]["path"]) == (0, "rollouts/multiply")
    assert any("eval submit" in step["command"] for step in body["next_steps_structured"])

    _, body = person.run("status", cwd=root)
    assert body["next_steps_structured"][0]["action"] == "commit your changes"
    workspace.git("add", "--all")
    Git(root).text("-c", "user.name=T", "-c", "user.email=t@t", "commit", "--quiet", "-m", "Add multiply")
    _, body = person.run("status", cwd=root)
    assert body["next_steps_structured"][0]["command"] == "git push"
    code, body = person.run("sync --wait", cwd=root)
    assert (code, body["error"]["message"]) == (1, "1 commit is not pushed to origin/main")
    workspace.git("push", "--quiet")
    code, body = person.run("sync --wait", cwd=root)
    assert (code, body["resource"]["in_sync"]) == (0, True)
    _, body = person.run("rollout list", cwd=root)
    row = body["items"][0]
    assert (row["name"], row["here"], row["synced"]) == ("multiply", True, True)
    assert row["last_synced_commit_sha"] == workspace.git("rev-parse", "HEAD")
    _, body = person.run("status", cwd=root)
    assert body["next_steps_structured"][0]["command"] == "osmosis eval submit configs/eval/multiply.toml --wait"
    code, body = person.run("doctor", cwd=root)
    assert code == 0
    found = {problem["code"] for problem in body["data"]["findings"]}
    assert found == {"no-dataset", "sandbox", "training"}
    assert body["data"]["workspace"]["name"] == "demo"
    assert body["data"]["platform"]["version"] == __version__
    workspace.git("config", "--unset-all", f"credential.{person.environ['OSMOSIS_PLATFORM_URL']}.helper")
    _, body = person.run("doctor", cwd=root)
    assert "no-helper" in {problem["code"] for problem in body["data"]["findings"]}
    assert person.run(f"init --here {root.name}", cwd=root)[0] == 0
    _, body = person.run("doctor", cwd=root)
    assert "no-helper" not in {problem["code"] for problem in body["data"]["findings"]}


def test_a_name_that_is_taken_changes_nothing(person: Person) -> None:
    assert person.run("init demo")[0] == 0
    elsewhere = person.cwd / "elsewhere"
    elsewhere.mkdir()
    code, body = person.run("init demo", cwd=elsewhere)
    assert (code, body["error"]["code"]) == (1, "CONFLICT")
    assert "git clone" in json.dumps(body["error"])
    assert list(elsewhere.iterdir()) == []


def test_init_here_goes_on_where_it_stopped(person: Person, platform: RunningPlatform) -> None:
    """The platform workspace exists and nothing was pushed to it: what an interrupted `init` leaves."""
    code, body = person.run("init other")
    assert code == 0, body
    root = person.cwd / "other"
    workspace_at(root).git("remote", "remove", "origin")
    code, body = person.run("init --here other", cwd=root)
    assert (code, body["error"]["code"]) == (1, "CONFLICT")  # it has been pushed to: this could be somebody else's
    workspace_at(root).git("remote", "add", "origin", f"{platform.url}/git/local/other.git")
    code, body = person.run("init --here other", cwd=root)
    assert (code, body["resource"]["platform"]["pushed"]) == (0, True)


def test_a_push_that_fails_says_how_to_go_on(person: Person, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-push").write_text("#!/bin/sh\necho no push today >&2\nexit 1\n")
    (hooks / "pre-push").chmod(0o755)
    root = person.cwd / "demo"
    root.mkdir()
    workspace = workspace_at(root)
    workspace.git("init", "--quiet")
    workspace.git("config", "core.hooksPath", str(hooks))
    code, body = person.run("init --here --platform", cwd=root)
    assert code == 1
    assert "no push today" in body["error"]["message"]
    assert "osmosis init --here --platform" in json.dumps(body["error"])
    shutil.rmtree(hooks)
    code, body = person.run("init --here --platform", cwd=root)
    assert (code, body["resource"]["platform"]["pushed"]) == (0, True)


def test_an_origin_of_ones_own_is_connected(person: Person, tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path / "mine")
    workspace.commit()
    workspace.add_remote(tmp_path / "hosted" / "team" / "agents.git")
    workspace.push()
    code, body = person.run("init --here --platform mine", cwd=workspace.root)
    assert code == 0, body
    assert body["resource"]["platform"]["repository"] == "team/agents"
    assert workspace.git("remote", "get-url", "origin").endswith("team/agents.git")
    workspace.push()
    code, body = person.run("sync --wait --timeout 60", cwd=workspace.root)
    assert (code, body["resource"]["in_sync"]) == (0, True), body
    assert body["resource"]["platform"]["repository"] == "team/agents"


def test_nothing_is_made_when_the_platform_is_asked_for_and_not_there(person: Person) -> None:
    person.environ["OSMOSIS_PLATFORM_URL"] = "http://127.0.0.1:1"
    code, body = person.run("init demo --platform")
    assert (code, body["error"]["code"]) == (1, "AUTH_REQUIRED")
    login = Login("http://127.0.0.1:1", "token")
    CredentialStore(person.environ).save(login, store="file")
    code, body = person.run("init demo --platform")
    assert (code, body["error"]["code"]) == (1, "NETWORK")
    assert list(person.cwd.iterdir()) == []
    code, body = person.run("init demo")
    assert (code, body["resource"]["platform"]) == (0, None)


def test_a_snapshot_reaches_the_git_host_and_moves_no_branch(person: Person) -> None:
    assert person.run("init demo")[0] == 0
    root = person.cwd / "demo"
    workspace = workspace_at(root)
    workspace.write("rollouts/multiply/main.py", "not committed\n")
    before = person.run("sync status", cwd=root)[1]["data"]["platform"]["commit_sha"]
    push_snapshot(root, make_snapshot(root))
    assert person.run("sync status", cwd=root)[1]["data"]["platform"]["commit_sha"] == before
    assert workspace.git("rev-parse", "HEAD") == before


def test_the_credential_helper_answers_for_known_platforms_only(person: Person, platform: RunningPlatform) -> None:
    def ask(action: str, protocol: str, host: str) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        asked = io.StringIO(f"protocol={protocol}\nhost={host}\npath=git/local/demo.git\n\n")
        assert answer(action, asked, out, err, person.environ) == 0
        return out.getvalue(), err.getvalue()

    host = platform.url.partition("://")[2]
    assert ask("get", "http", host)[0] == f"username=local\npassword={platform.token}\n"
    assert ask("store", "http", host) == ("", "")
    out, err = ask("get", "https", "elsewhere.example")
    assert out == ""
    assert "not logged in to https://elsewhere.example" in err
    assert ask("get", "https", "")[0] == ""
