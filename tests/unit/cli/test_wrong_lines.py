"""Wrong command lines: each is answered with exit code, what is wrong and what to type."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.command_line import run_command

# line, exit code, part of the message, part of the hint
USAGE = [
    ("evl", "no such command: osmosis evl; did you mean eval?", "osmosis eval"),
    ("dataste list", "did you mean dataset?", "osmosis dataset"),
    ("datset", "did you mean dataset?", "osmosis dataset"),
    ("run", "did you mean eval submit?", "osmosis eval submit"),
    ("submit x.toml", "did you mean eval submit?", "osmosis eval submit"),
    ("start", "did you mean platform start?", "osmosis platform start"),
    ("upload f", "did you mean dataset upload?", "osmosis dataset upload"),
    ("secrets", "did you mean secret?", "osmosis secret"),
    ("log in", "no such command", "osmosis"),
    ("xyzzy", "no such command: osmosis xyzzy", "osmosis --help"),
    ("--jsn eval list", "no such option: --jsn", "osmosis --help"),
    ("eval submti", "did you mean submit?", "osmosis eval submit"),
    ("eval cancel x", "did you mean stop?", "osmosis eval stop"),
    ("eval ls", "did you mean list?", "osmosis eval list"),
    ("eval status x", "did you mean show?", "osmosis eval show"),
    ("eval rm x", "did you mean delete?", "osmosis eval delete"),
    ("dataset ls", "did you mean list?", "osmosis dataset list"),
    ("dataset push f", "did you mean upload?", "osmosis dataset upload"),
    ("dataset rm x", "did you mean delete?", "osmosis dataset delete"),
    ("secret add X", "no such command: osmosis secret add", "osmosis secret --help"),
    ("platform strat", "did you mean start?", "osmosis platform start"),
    ("workspace use x", "did you mean switch?", "osmosis workspace switch"),
    ("workspace new x", "did you mean create?", "osmosis workspace create"),
    ("train kill x", "did you mean stop?", "osmosis train stop"),
    ("model get x", "did you mean show?", "osmosis model show"),
    ("auth signin", "no such command: osmosis auth signin", "osmosis auth"),
    ("eval info", "missing argument", "osmosis eval info --help"),
    ("eval info a b", "unexpected extra argument", "osmosis eval info --help"),
    ("eval list --limit 0", "'--limit'", "osmosis eval list --help"),
    ("eval list --limit 51", "'--limit'", "osmosis eval list --help"),
    ("eval list --limit many", "'--limit'", "osmosis eval list --help"),
    ("eval list --limti 3", "no such option: --limti; did you mean --limit?", "osmosis eval list --help"),
    ("eval list --limit", "requires an argument", "osmosis eval list --help"),
    ("eval list --limit 3 --all", "cannot be used together", None),
    ("eval logs x --limit 500", "'--limit'", "osmosis eval logs --help"),
    ("eval submit x.toml --fail-under 2", "'--fail-under'", "osmosis eval submit --help"),
    ("platform start --port 99999", "'--port'", "osmosis platform start --help"),
    ("platform start --port x", "'--port'", "osmosis platform start --help"),
    ("dataset preview x --rows 0", "'--rows'", "osmosis dataset preview --help"),
    ("secret set X --scope mine", "'mine' is not one of 'personal', 'workspace'", "osmosis secret set --help"),
    ("secret list --scope mine", "'mine' is not one of 'all', 'personal', 'workspace'", "osmosis secret list --help"),
    ("secret set X --env A --from-file f", "cannot be used together", None),
    ("model list --type tiny", "'tiny' is not one of 'all', 'base', 'lora'", "osmosis model list --help"),
    ("login --store cloud", "'cloud' is not one of 'auto', 'file', 'keyring'", "osmosis login --help"),
    ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'", "osmosis completion --help"),
    ("config schema other", "'other' is not one of 'eval', 'training'", "osmosis config schema --help"),
    ("schema dataset", "osmosis dataset is a group", "list"),
    ("schema eval", "osmosis eval is a group", "osmosis eval --help"),
    ("schema nothing", "no such command: osmosis nothing", "osmosis --help"),
    ("schema completion", "prints text, not a result", "osmosis --help"),
    ("eval list --platform", "option --platform needs a value", None),
    ("--json --plain eval list", "cannot be used together", None),
]
KNOWN = [
    ("whoami", "AUTH_REQUIRED", "not logged in to http://127.0.0.1:7575", "osmosis login"),
    ("eval list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("dataset list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("workspace list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("train list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("model list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("secret list", "AUTH_REQUIRED", "not logged in", "osmosis login"),
    ("eval submit x.toml", "WORKSPACE_REQUIRED", "not inside a workspace", "osmosis init"),
    ("train submit", "WORKSPACE_REQUIRED", "not inside a workspace", "osmosis init"),
    ("secret check x.toml", "WORKSPACE_REQUIRED", "not inside a workspace", "osmosis init"),
    ("eval list --platform ftp://x", "VALIDATION", "ftp:// is not http:// or https://", "--platform"),
    ("eval list --platform http://example.com", "VALIDATION", "plain http to another machine", "https"),
    ("eval list --platform http://u:p@127.0.0.1", "VALIDATION", "must not contain credentials", "--platform"),
    ("eval list --platform http://127.0.0.1:99999", "VALIDATION", "not a platform URL", "--platform"),
    ("eval list --platform http://", "VALIDATION", "no host", "--platform"),
    ("eval list --env-file missing.env", "VALIDATION", "env file not found", "--env-file"),
    ("dataset validate missing.jsonl", "NOT_FOUND", "there is no file", "osmosis dataset upload"),
    ("dataset validate notes.txt", "VALIDATION", "unsupported format, use jsonl, json, csv, parquet", None),
    ("dataset upload missing.jsonl", "NOT_FOUND", "there is no file", "osmosis dataset upload"),
    ("secret set lower-case", "VALIDATION", "is not a secret name", "osmosis secret set LOWER_CASE"),
    ("secret set X --env NOT_SET", "VALIDATION", "the variable NOT_SET is not set", "export NOT_SET"),
    ("secret set X --from-file missing", "VALIDATION", "cannot read missing: No such file", None),
    ("secret set X --from-file /", "VALIDATION", "cannot read /: Is a directory", None),
    ("secret set X --from-file -", "VALIDATION", "the value of X is empty", None),
    ("secret import missing.env", "VALIDATION", "cannot read the secrets file", None),
    ("quickstart", "INTERACTIVE_REQUIRED", "no terminal to ask on", "--yes"),
    ("quickstart --yes --base-url http://127.0.0.1:1/v1", "VALIDATION", "--base-url needs --model", None),
    ("quickstart --yes --model m --base-url x", "VALIDATION", "is not an http URL", "http://"),
    ("quickstart --yes --model openai/gpt-5-mini", "VALIDATION", "needs OPENAI_API_KEY", "export OPENAI_API_KEY"),
    (
        "quickstart --yes --model m --base-url http://127.0.0.1/v1 --api-key-env NOT_SET",
        "VALIDATION",
        "NOT_SET",
        "export",
    ),
    ("quickstart --yes --dir notes.txt", "VALIDATION", "is a file", "--dir"),
    ("platform logs", "NOT_FOUND", "no log yet", "osmosis platform start"),
    ("login --token -", "VALIDATION", "the token is empty", "--token"),
    ("login --platform http://127.0.0.1:9", "INTERACTIVE_REQUIRED", "has to be approved in a browser", "--token"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("hello\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # nothing above this folder counts
    return tmp_path


@pytest.mark.parametrize(("line", "message", "hint"), USAGE, ids=[row[0] for row in USAGE])
def test_a_wrong_line_says_what_to_type(folder: Path, line: str, message: str, hint: str | None) -> None:
    ran = run_command(*line.split(), cwd=folder)
    assert ran.code == 2, ran.err
    assert message in ran.err
    assert hint is None or hint in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(("line", "code", "message", "hint"), KNOWN, ids=[row[0] for row in KNOWN])
def test_a_known_problem_is_data_too(folder: Path, line: str, code: str, message: str, hint: str | None) -> None:
    ran = run_command(*line.split(), "--json", cwd=folder)
    assert ran.code == (2 if "needs --model" in message else 1), ran.err
    assert ran.error["code"] == code
    assert message in ran.error["message"]
    assert hint is None or hint in ran.error["details"].get("hint", "")
    assert ran.out == ""


def test_the_same_problem_in_three_forms(folder: Path) -> None:
    human, plain, data = (run_command("whoami", *flag, cwd=folder) for flag in ([], ["--plain"], ["--json"]))
    assert human.code == plain.code == data.code == 1
    assert human.err == plain.err == "Error: not logged in to http://127.0.0.1:7575\n  try: osmosis login\n"
    assert data.error["details"] == {"platform_url": "http://127.0.0.1:7575", "hint": "osmosis login"}


def test_a_bad_dataset_lists_its_rows(folder: Path) -> None:
    (folder / "d.jsonl").write_text(
        '{"user_prompt": "a", "ground_truth": "1"}\n' * 4 + '{"user_prompt": ""}\nnot json\n'
    )
    ran = run_command("dataset", "validate", "d.jsonl", "--json", cwd=folder)
    assert ran.code == 1
    assert len(ran.error["details"]["issues"]) >= 2
    assert any("6" in issue["message"] for issue in ran.error["details"]["issues"])


def test_a_good_dataset_is_described(folder: Path) -> None:
    (folder / "d.jsonl").write_text('{"user_prompt": "a", "ground_truth": "1"}\n' * 4)
    ran = run_command("dataset", "validate", "d.jsonl", "--json", cwd=folder)
    assert ran.code == 0, ran.err
    assert ran.json["resource"]["rows"] == 4
