"""Help, examples, schemas and completion: for every command of the table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from osmosis.cli.core.app import OLD, CommandGroup, find_command
from osmosis.cli.main import COMMANDS, ROOT
from osmosis.cli.schema import schema_of
from support.command_line import run_command
from support.command_reference import commands, reference, split_help, why_wrong

ALL = list(commands())
IDS = [" ".join(path) for path, _ in ALL]
TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_every_command_has_help_and_an_example_that_parses(path: tuple[str, ...], command: object) -> None:
    about, examples = split_help(getattr(command, "help", "") or "")
    assert about[:1].isupper()
    lines = " ".join(examples).replace("\\ ", "")
    assert "osmosis " in lines
    for line in examples:
        if line.startswith("osmosis") and not line.endswith("\\"):
            assert why_wrong(line.split(" < ")[0].split(" > ")[0].split(" && ")[0]) is None, line


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_every_option_says_what_it_does(path: tuple[str, ...], command: object) -> None:
    for param in getattr(command, "params", []):
        if not getattr(param, "hidden", False):
            assert getattr(param, "help", None), f"{path}: {param.name}"


GROUPS = ["", *(name for name, command in COMMANDS.items() if isinstance(command, CommandGroup)), "dataset"]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (TOP / "docs").glob("*.md"))])
def test_a_command_that_a_page_names_in_a_sentence_exists(page: str) -> None:
    for words in re.findall(r"`osmosis ([a-z][a-z-]*(?: [a-z][a-z-]*)?)(?=[ `])", (TOP / page).read_text()):
        find_command(ROOT, words.split())


GUIDES = ["README.md", "CHANGELOG.md", *(f"{top}/**/*.{end}" for top in ("docs", "examples") for end in ("md", "toml"))]
GUIDES += ["templates/**/*.md", "templates/**/*.jinja", "templates/**/.agents/**/*.md"]


def test_pages_and_templates_name_no_older_spelling() -> None:
    older = "|".join(name.replace(" ", r"\s+") for name in sorted(OLD, key=len, reverse=True) if name != "validate")
    pattern = re.compile(rf"(?:osmosis\s+|`)({older})(?![\w-])")
    pages = [path for guide in GUIDES for path in TOP.glob(guide)]
    found = [f"{page.relative_to(TOP)}: {name}" for page in pages for name in pattern.findall(page.read_text())]
    assert not found


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(tmp_path: Path, group: str) -> None:
    path = group.split()
    asked, bare = run_command(*path, "--help", cwd=tmp_path), run_command(*path, cwd=tmp_path)
    assert asked.code == bare.code == 0
    assert asked.out == bare.out
    assert f"Usage: {' '.join(['osmosis', *path])} COMMAND" in asked.out


def test_h_and_help_work_everywhere(tmp_path: Path) -> None:
    assert "Usage: osmosis eval show" in run_command("eval", "show", "-h", cwd=tmp_path).out
    assert "Usage: osmosis eval show" in run_command("help", "eval", "show", cwd=tmp_path).out
    assert "Usage: osmosis dataset upload" in run_command("dataset", "upload", "--help", cwd=tmp_path).out


def test_the_version_is_said_by_flag(tmp_path: Path) -> None:
    for flag in ("--version", "-V"):
        assert run_command(flag, cwd=tmp_path).out == "osmosis-ai 1.0.0\n"


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert (TOP / "docs" / "cli.md").read_text() == reference(), "write it again: make docs"


def command_lines() -> list[tuple[str, str]]:
    """Every `osmosis ...` line in a fenced block of the README and the docs, continuation lines joined."""
    found = []
    for page in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]:
        if page.name == "cli.md":
            continue
        fenced, held = False, ""
        for line in page.read_text().splitlines():
            if line.lstrip().startswith("```"):
                fenced, held = not fenced, ""
                continue
            text = held + line.strip().removeprefix("$ ")
            held = text[:-1] if text.endswith("\\") else ""
            if fenced and not held and text.startswith(("osmosis ", "osmosis-ai ")):
                found.append((page.name, text))
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_command_lines_of_the_docs_parse(page: str, line: str) -> None:
    words = re.split(r"\s{3,}| #", line)[0]  # a transcript shows the result behind the command
    for part in words.replace(" || ", " && ").split(" && "):
        bare = part.split(" | ")[0].split(" > ")[0].split(" < ")[0]
        if bare.strip().startswith("osmosis") and not any(mark in bare for mark in ("...", "<", "[", "NAME")):
            assert why_wrong(bare) is None, f"{page}: {bare}"


@pytest.mark.parametrize(
    "line", ["eval info", "eval submit", "dataset list", "whoami", "platform start", "sync status"]
)
def test_schemas_are_json_schema(line: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of(line.split())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "schema_version" in str(schema)


def test_results_fit_their_schema(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "d.jsonl").write_text('{"user_prompt": "a", "ground_truth": "1"}\n' * 4)
    body = run_command("dataset", "validate", "d.jsonl", "--json", cwd=tmp_path).json
    jsonschema.validate(body, schema_of(["dataset", "validate"]))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**body, "schema_version": 2}, schema_of(["dataset", "validate"]))


def complete(cwd: Path, *words: str) -> list[str]:
    ran = run_command("__complete", "--", *words, cwd=cwd)
    assert ran.code == 0, ran.err
    return [line.split("\t")[0] for line in ran.out.splitlines()]


def test_the_shell_gets_words_options_and_values(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert complete(tmp_path, "plat") == ["platform"]
    assert {"start", "status", "stop", "logs"} <= set(complete(tmp_path, "platform", ""))
    assert complete(tmp_path, "eval", "subm") == ["submit"]
    assert complete(tmp_path, "eval", "submit", "--wait-") == ["--wait-sync"]
    assert complete(tmp_path, "--json", "secret", "set", "X", "--scope", "w") == ["workspace"]
    assert complete(tmp_path, "completion", "") == ["bash", "zsh", "fish"]
    assert "--json" in complete(tmp_path, "eval", "list", "--j")
    assert complete(tmp_path, "dataset", "upload", "") == [""]
    assert complete(tmp_path, "eval", "info", "") == [""]  # not logged in: no name, no error


def test_names_of_the_workspace_are_offered(tmp_path: Path) -> None:
    for folder in ("rollouts/multiply", "configs/eval", "configs/training", "data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "configs/eval/multiply.toml").write_text("")
    assert "configs/eval/multiply.toml" in complete(tmp_path, "eval", "submit", "conf")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(tmp_path: Path, shell: str) -> None:
    script = run_command("completion", shell, cwd=tmp_path).out
    assert f"_OSMOSIS_COMPLETE=complete_{shell}" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
