"""What the doctor finds in a damaged workspace, and what it repairs."""

from __future__ import annotations

from pathlib import Path

from osmosis.records.config.experiment import Experiment
from osmosis.workspace.doctor import check_machine, diagnose, repair, try_read_source
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import check_folder, check_submit, gather
from osmosis.workspace.templates import create_workspace
from support.git_workspace import EVAL, GitWorkspace


def codes(root: Path) -> dict[str, str]:
    workspace = Workspace(root)
    return {p.code: p.severity for p in diagnose(workspace, try_read_source(workspace))}


def test_a_new_workspace_has_nothing_but_a_missing_remote(tmp_path: Path) -> None:
    create_workspace(tmp_path / "demo", "demo", template="multiply")
    assert codes(tmp_path / "demo") == {"no-remote": "warning"}


def test_findings_of_a_damaged_workspace(repo: GitWorkspace) -> None:
    repo.write("configs/eval/multiply.toml", EVAL.replace("main.py", "mian.py"))
    repo.write("configs/training/broken.toml", "x = [\n")
    repo.write(".gitignore", "")
    repo.write(".env", "SECRET=1\n")
    repo.commit()
    (repo.root / "data").rmdir()
    repo.write("new.txt", "")
    found = codes(repo.root)
    for code in ("missing-folder", "no-entrypoint", "toml-syntax", "not-ignored", "secrets-in-git"):
        assert found[code] == "error", code
    for code in ("missing-file", "untracked", "unpushed"):
        assert found[code] == "warning", code
    assert found["schema"] == "info"


def test_a_file_that_python_refuses_is_named_with_its_line(repo: GitWorkspace) -> None:
    repo.write("rollouts/multiply/tools.py", "def broken(:\n    pass\n")
    repo.write("rollouts/multiply/.venv/other.py", "not python at all !")
    workspace = Workspace(repo.root)
    (found,) = [p for p in diagnose(workspace, try_read_source(workspace)) if p.code == "syntax"]
    assert (found.severity, found.where) == ("error", "rollouts/multiply/tools.py:1")

    experiment = Experiment(rollout="multiply", entrypoint="main.py", model_path="m", dataset="d")
    stopped = check_submit(experiment, gather(repo.root, experiment), None)
    assert "syntax" in {p.code for p in stopped if p.severity == "error"}
    # A branch is other code than what lies here.
    other = experiment.model_copy(update={"branch": "main"})
    assert "syntax" not in {p.code for p in check_submit(other, gather(repo.root, other), None)}


def test_repair_creates_what_is_missing_and_changes_nothing_else(repo: GitWorkspace) -> None:
    repo.write("README.md", "mine\n")
    repo.write(".gitignore", "*.tmp")
    (repo.root / "data").rmdir()
    workspace = Workspace(repo.root)
    done = repair(workspace, try_read_source(workspace))
    assert "created data/" in done
    assert "created AGENTS.md" in done
    assert "added .osmosis/, .env to .gitignore" in done
    assert (repo.root / ".gitignore").read_text() == "*.tmp\n.osmosis/\n.env\n"
    assert (repo.root / "README.md").read_text() == "mine\n"
    assert [p for p in check_folder(workspace) if p.code.startswith("missing")] == []
    assert repair(workspace, try_read_source(workspace)) == []


def test_repair_writes_through_no_link(repo: GitWorkspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (repo.root / "data").rmdir()
    (repo.root / "data").symlink_to(outside)
    (repo.root / "AGENTS.md").symlink_to(tmp_path / "elsewhere.md")
    workspace = Workspace(repo.root)
    repair(workspace, try_read_source(workspace))
    assert not outside.exists()
    assert not (tmp_path / "elsewhere.md").exists()


def test_an_outdated_template_and_schema_are_found(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    create_workspace(root, "demo")
    record = root / ".template.toml"
    record.write_text(record.read_text().replace('version = "1', 'version = "0'), "utf-8")
    (root / "configs/eval.schema.json").write_text("{}")
    found = codes(root)
    assert (found["template-outdated"], found["schema"]) == ("info", "info")
    workspace = Workspace(root)
    assert repair(workspace, try_read_source(workspace)) == ["wrote configs/eval.schema.json"]


def test_the_machine_is_looked_at(tmp_path: Path) -> None:
    environ = {"OSMOSIS_DATA_DIR": str(tmp_path / "a" / "b"), "OSMOSIS_CACHE_DIR": str(tmp_path / "c"), "PATH": ""}
    assert {p.severity for p in check_machine(environ)} <= {"warning", "info"}
    assert [p.code for p in check_machine(environ)][-1] == "sandbox"
