"""The client of generation 0.3 that people have installed, driven as a black box against this platform."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from osmosis.testing.platform_process import PlatformProcess, until

pytestmark = [pytest.mark.flow, pytest.mark.network]

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
UNREACHABLE = (
    "dns error",
    "Could not connect",
    "error sending request",
    "timed out",
    "Connection refused",
    "tcp connect",
)


def python_for_it() -> str | None:
    """An interpreter of 3.12 or newer, which the published client needs; a name on PATH may be a broken shim."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates = [
        sys.executable,
        *(f"python3.{minor}" for minor in (12, 13, 14)),
        *map(str, pyenv.glob("3.*/bin/python")),
    ]
    for candidate in candidates:
        check = [shutil.which(candidate) or candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]
        try:
            if subprocess.run(check, capture_output=True, check=False, timeout=30).returncode == 0:
                return check[0]
        except OSError:
            continue
    return None


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published client in an environment of its own."""
    folder = tmp_path_factory.mktemp("published")
    uv, python = find_uv_bin(), python_for_it()
    if python is None:
        pytest.skip("the published client needs Python 3.12 or newer, and none is installed")
    subprocess.run([uv, "venv", "-q", "--python", python, str(folder)], check=True, capture_output=True)
    install = [uv, "pip", "install", "-q", "--python", str(folder), "osmosis-ai==0.3.*"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0 and any(words.lower() in done.stderr.lower() for words in UNREACHABLE):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "osmosis"


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
    """Run a command with `--json` and return what it printed; the exit code must be the expected one."""
    url = str(platform.http.base_url).rstrip("/")
    (tmp_path / "home").mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "OSMOSIS_TOKEN": platform.http.headers["authorization"].partition(" ")[2],
        "OSMOSIS_TOKEN_PLATFORM_URL": url,
        "OSMOSIS_PLATFORM_URL": url,
        "API_KEY": "value-for-the-test",
    }

    def run(*args: str, expect: int = 0) -> Any:
        done = subprocess.run(
            [str(published), "--json", *args], cwd=workspace, env=environ, capture_output=True, text=True, timeout=120
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


def test_lists_of_what_there_is_none_of(client: Callable[..., Any]) -> None:
    assert client("train", "list")["items"] == []
    assert client("model", "list")["lora_models"]["items"] == []
    assert client("benchmark", "list")["items"] == []


def test_a_config_the_platform_refuses_says_which_key(client: Callable[..., Any], workspace: Path) -> None:
    config = workspace / "configs" / "eval" / "multiply.toml"
    config.write_text(CONFIG.replace("limit = 6", 'limit = 6\nn = "three"'))
    refused = client("eval", "submit", "configs/eval/multiply.toml", "--yes", expect=1)
    assert refused["error"]["code"] == "VALIDATION"
    assert "evaluation.n" in json.dumps(refused)
