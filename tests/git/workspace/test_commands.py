"""Wrong command lines about workspaces: one clear error with what to type, as data too, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis.cli.main import main
from support.command_line import run_command
from support.git_workspace import GitWorkspace


@pytest.mark.parametrize(
    ("line", "code", "message", "hint"),
    [
        ("init", "INTERACTIVE_REQUIRED", "no terminal to ask on", "give NAME or --here"),
        ("init Bad", "VALIDATION", "workspace name 'Bad'", "osmosis init bad"),
        ("init Bad --here", "VALIDATION", "workspace name 'Bad'", "osmosis init bad --here"),
        ("init runs --no-platform", "VALIDATION", "own addresses use it", "osmosis init my-runs"),
        ("init new --no-git --platform", "VALIDATION", "--platform needs git", "remove --no-git"),
        ("init new --template nothing --no-platform", "NOT_FOUND", "no template 'nothing'", "one of: multiply"),
        ("rollout new Bad", "VALIDATION", "rollout name 'Bad'", "osmosis rollout new bad"),
        ("rollout new a -t nothing", "NOT_FOUND", "no template 'nothing'", "osmosis template show"),
        ("rollout new a -t empty --api-key-env K", "VALIDATION", "--api-key-env", "also give --base-url URL"),
        ("rollout new a -t empty --base-url host:80", "VALIDATION", "is not an http URL", "http://127.0.0.1"),
        ("rollout new multiply -t multiply", "CONFLICT", "3 existing files would be overwritten", "--force"),
        ("config check nothing.toml", "VALIDATION", "must live under configs/eval/", "configs/eval/"),
        (
            "config check configs/eval/multiplyy.toml",
            "NOT_FOUND",
            "no such config: configs/eval/multiplyy",
            "multiply.toml?",
        ),
        ("config show nothing", "NOT_FOUND", "there is no config nothing", "osmosis check"),
        ("config set multiply evaluation.nn 3", "VALIDATION", "no key evaluation.nn", "did you mean evaluation.n?"),
        ("template show mutliply", "NOT_FOUND", "no template 'mutliply'", "did you mean multiply?"),
        ("template update", "VALIDATION", "nothing here was created from", ".template.toml"),
        ("template update multiply", "NOT_FOUND", "multiply was not created from a template", "nothing here"),
        ("sync", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ],
)
def test_wrong_lines(
    folder: GitWorkspace, capsys: pytest.CaptureFixture[str], line: str, code: str, message: str, hint: str
) -> None:
    environ = {"HOME": str(folder.root.parent), "OSMOSIS_PLATFORM_URL": "http://127.0.0.1:1"}
    environ["OSMOSIS_CONFIG_DIR"] = str(folder.root.parent / "config")
    before = sorted(str(p) for p in folder.root.rglob("*"))
    assert main([*line.split(), "--json"], environ=environ, cwd=folder.root) == 1
    error = json.loads(capsys.readouterr().err.strip().splitlines()[-1])["error"]
    assert (error["code"], message in error["message"]) == (code, True), error
    assert hint in error["details"]["hint"], error
    assert sorted(str(p) for p in folder.root.rglob("*")) == before


def test_outside_a_workspace_each_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "status",
        "rollout new a",
        "rollout list",
        "config check",
        "template update",
        "template check",
        "sync",
    ):
        assert main([*line.split(), "--json"], environ={"HOME": str(tmp_path)}, cwd=tmp_path) == 1
        error = json.loads(capsys.readouterr().err.strip().splitlines()[-1])["error"]
        assert error["code"] == "WORKSPACE_REQUIRED", line


def test_a_person_without_a_name_in_git_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    made = run_command("init", "demo", "--no-platform", "--json", cwd=tmp_path)
    assert made.code == 0
    assert "NO_GIT_IDENTITY" in made.err
    assert any(
        "git config --global user.name" in step.get("command", "") for step in made.json["next_steps_structured"]
    )

    (tmp_path / "none").write_text("[user]\n\tname = Ada\n\temail = ada@example.com\n")
    known = run_command("init", "other", "--no-platform", "--json", cwd=tmp_path)
    assert "NO_GIT_IDENTITY" not in known.err


def test_a_submit_while_logged_out_names_what_else_stops_it(tmp_path: Path) -> None:
    made = GitWorkspace(tmp_path / "here")
    made.commit()
    made.add_remote()
    made.push()

    def keys() -> tuple[str, list[str]]:
        done = run_command("eval", "submit", "multiply", "--yes", "--json", cwd=made.root)
        assert done.code == 1
        return done.error["code"], [one["key"] for one in done.error["details"].get("issues", [])]

    assert keys() == ("AUTH_REQUIRED", []), "the login is all that is missing"
    made.write("rollouts/multiply/main.py", "changed\n")
    code, found = keys()
    assert (code, found[0]) == ("AUTH_REQUIRED", "not-logged-in")
    assert "dirty-rollout" in found
    config = made.root / "configs" / "eval" / "multiply.toml"
    config.write_text(config.read_text() + "\n[evaluation]\nlimitt = 3\n")
    code, found = keys()
    assert code == "VALIDATION"
    assert {"not-logged-in", "dirty-rollout"} < set(found)
    text = run_command("eval", "submit", "multiply", "--yes", cwd=made.root).err
    assert "not logged in" in text
    assert "limitt" in text
