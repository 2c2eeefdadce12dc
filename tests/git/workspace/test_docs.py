"""The pages about workspaces and configs say what the code does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from osmosis.cli.main import main
from osmosis.records.config.run_config import EvalConfig
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.layout import Workspace
from osmosis.workspace.templates import list_templates
from support.config_reference import replace_tables
from support.git_workspace import EVAL, GitWorkspace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parents[3] / "docs"
CONFIG_PAGE = (DOCS / "config.md").read_text("utf-8")
WORKSPACE_PAGE = (DOCS / "workspace.md").read_text("utf-8")


def test_the_tables_are_made_from_the_records() -> None:
    """When this fails: make docs."""
    assert replace_tables(CONFIG_PAGE) == CONFIG_PAGE
    broken = [line for line in CONFIG_PAGE.splitlines() if line.startswith("|") and not line.endswith("|")]
    assert not broken, "a row of a table is one line"


def test_the_example_config_is_valid() -> None:
    example = re.search(r"```toml\n(.*?)```", CONFIG_PAGE, re.DOTALL)
    assert example is not None
    assert EvalConfig.model_validate(tomllib.loads(example[1])).evaluation.n == 3


def test_the_example_messages_are_real(folder: GitWorkspace) -> None:
    text = (
        EVAL.split("[secrets]")[0].rstrip()
        + "\n"
        + "\n" * 5
        + '[evaluation]\nn = "3"\n\nlimt = 20\n[secrets]\nrequired = []\n'
    )
    path = folder.write("configs/eval/multiply.toml", text)
    file = ConfigFile("eval", path, "configs/eval/multiply.toml")
    lines = [p.line() for p in check_file(file, Workspace(folder.root))[1]]
    assert len(lines) == 2
    for line in lines:
        assert line in CONFIG_PAGE


def test_every_template_is_described() -> None:
    for template in list_templates():
        assert f"| `{template.name}` |" in WORKSPACE_PAGE


def test_every_command_line_of_the_pages_is_one(folder: GitWorkspace) -> None:
    """Each line is asked for its help, so that a renamed command or option cannot stay in the text."""
    lines = set(re.findall(r"`(osmosis [^`]+)`", CONFIG_PAGE + WORKSPACE_PAGE))
    lines |= {x for x in re.findall(r"^(osmosis .+)$", CONFIG_PAGE + WORKSPACE_PAGE, re.MULTILINE)}
    assert len(lines) > 20
    for line in sorted(lines):
        words = line.split()[1:]
        assert main([*words, "--help"], environ={"HOME": str(folder.root)}, cwd=folder.root) == 0, line
