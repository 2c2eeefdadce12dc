"""Three-way updates: what the template changed arrives, what a person wrote stays, conflicts are marked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from osmosis.errors import Conflict, NotFound, OsmosisError, ValidationError
from osmosis.workspace.layout import Workspace
from osmosis.workspace.templates import list_instances, render_rollout, render_workspace, templates_dir, update_all
from support import template_bundle as bundle
from support.git_workspace import GitWorkspace

pytestmark = pytest.mark.slow

MAIN = "rollout/empty/rollouts/{{ name }}/main.py"


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the templates with a version 9.0.0 that changes, adds and removes files. Not to be written to."""
    folder = tmp_path_factory.mktemp("newer") / "templates"
    shutil.copytree(templates_dir(), folder)
    main = folder / MAIN
    text = main.read_text("utf-8")
    text = text.replace('"""An agent to fill in:', '"""An agent to fill in (second edition):')
    text = text.replace('log_level="warning")', 'log_level="error")')
    main.write_text(text, "utf-8")
    (main.parent / "notes.md").write_text("new in 9\n", "utf-8")
    (folder / "rollout/empty/data/{{ name }}.jsonl").unlink()
    readme = folder / "workspace/README.md.jinja"
    readme.write_text(readme.read_text("utf-8") + "\nAdded in version 9.\n", "utf-8")
    (folder / "VERSION").write_text("9.0.0\n", "utf-8")
    assert bundle.write_bundle(folder)
    return folder


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed workspace with a rollout of today's `empty` template. Not to be written to."""
    root = tmp_path_factory.mktemp("made") / "ws"
    workspace = GitWorkspace(root)
    shutil.rmtree(root / "rollouts")
    shutil.rmtree(root / "configs")
    (root / ".gitignore").unlink()
    render_workspace(root, {"name": "ws"})
    render_rollout("mine", "empty", root)
    workspace.commit()
    return root


@pytest.fixture
def made(made_once: Path, tmp_path: Path) -> GitWorkspace:
    """A copy of it, to be worked in."""
    shutil.copytree(made_once, tmp_path / "ws", symlinks=True)
    workspace = GitWorkspace.__new__(GitWorkspace)
    workspace.root = tmp_path / "ws"
    return workspace


def test_versions_are_kept_and_a_released_one_is_not_rewritten(newer: Path, tmp_path: Path) -> None:
    assert bundle.versions(newer)[-1] == "9.0.0"
    assert len(bundle.versions(newer)) >= 2
    newer = shutil.copytree(newer, tmp_path / "copy")
    (newer / MAIN).write_text("changed after the release", "utf-8")
    with pytest.raises(OsmosisError, match="in the bundle with other content"):
        bundle.write_bundle(newer)


def test_outdated_instances_are_found(made: GitWorkspace, newer: Path) -> None:
    found = {i.label: i.outdated for i in list_instances(Workspace(made.root), newer)}
    assert found == {"workspace": True, "mine": True}
    assert not any(i.outdated for i in list_instances(Workspace(made.root)))


def test_untouched_files_take_the_new_version(made: GitWorkspace, newer: Path) -> None:
    merged = {m.label: m for m in update_all(Workspace(made.root), ["workspace", "mine"], newer)}
    mine = merged["mine"]
    assert (mine.updated, mine.added, mine.removed, mine.conflicts) == (
        ["rollouts/mine/main.py"],
        ["rollouts/mine/notes.md"],
        ["data/mine.jsonl"],
        [],
    )
    assert merged["workspace"].updated == ["README.md"]
    assert "second edition" in (made.root / "rollouts/mine/main.py").read_text()
    assert not any(i.outdated for i in list_instances(Workspace(made.root), newer))


def test_what_a_person_wrote_is_kept(made: GitWorkspace, newer: Path) -> None:
    main = made.root / "rollouts/mine/main.py"
    text = main.read_text("utf-8").replace("answer = await chat.complete(messages)", "answer = await mine(chat)")
    main.write_text(text, "utf-8")
    made.write("data/mine.jsonl", '{"user_prompt": "mine"}\n')
    (made.root / "rollouts/mine/README.md").unlink()
    made.commit()
    merged = update_all(Workspace(made.root), ["mine"], newer)[0]
    after = main.read_text("utf-8")
    assert "answer = await mine(chat)" in after
    assert "second edition" in after
    assert merged.conflicts == []
    assert merged.kept == ["data/mine.jsonl"]
    assert (made.root / "data/mine.jsonl").read_text() == '{"user_prompt": "mine"}\n'
    assert not (made.root / "rollouts/mine/README.md").exists()


def test_both_sides_at_one_line_is_a_marked_conflict(made: GitWorkspace, newer: Path) -> None:
    main = made.root / "rollouts/mine/main.py"
    main.write_text(main.read_text("utf-8").replace('log_level="warning")', 'log_level="debug")'), "utf-8")
    made.commit()
    merged = update_all(Workspace(made.root), ["mine"], newer)[0]
    assert merged.conflicts == ["rollouts/mine/main.py"]
    text = main.read_text("utf-8")
    assert "<<<<<<< before updating" in text
    assert ">>>>>>> after updating" in text
    assert 'log_level="debug")' in text


def test_uncommitted_work_is_never_merged_over(made: GitWorkspace, newer: Path) -> None:
    made.write("notes.txt", "not committed")
    with pytest.raises(Conflict, match=r"uncommitted changes: notes.txt"):
        update_all(Workspace(made.root), ["mine"], newer)
    assert "second edition" not in (made.root / "rollouts/mine/main.py").read_text()


def test_without_a_repository_there_is_no_update(made: GitWorkspace, newer: Path) -> None:
    shutil.rmtree(made.root / ".git")
    with pytest.raises(ValidationError, match="needs a git repository"):
        update_all(Workspace(made.root), ["mine"], newer)


def test_a_folder_without_a_template_is_refused(made: GitWorkspace, newer: Path) -> None:
    with pytest.raises(NotFound) as caught:
        update_all(Workspace(made.root), ["other"], newer)
    assert caught.value.hint == "created from a template: workspace, mine"


def test_a_version_from_the_future_says_what_to_install(made: GitWorkspace, newer: Path) -> None:
    record = made.root / "rollouts/mine/.template.toml"
    record.write_text(record.read_text().replace('version = "1', 'version = "0.0'), "utf-8")
    made.commit()
    with pytest.raises(OsmosisError, match="does not know version"):
        update_all(Workspace(made.root), ["mine"], newer)


def test_other_files_of_the_repository_are_not_looked_at(made: GitWorkspace, newer: Path) -> None:
    odd = made.root / "rollouts/mine/odd.txt"
    odd.write_bytes(b"caf\xe9\n")
    made.write("large.bin", "\x00" * 100_000)
    made.commit()
    merged = update_all(Workspace(made.root), ["mine"], newer)[0]
    assert (merged.updated, merged.conflicts) == (["rollouts/mine/main.py"], [])
    assert odd.read_bytes() == b"caf\xe9\n"
    changed = {line[3:] for line in made.git("status", "--porcelain").splitlines()}
    assert changed == {
        "data/mine.jsonl",
        "rollouts/mine/.template.toml",
        "rollouts/mine/main.py",
        "rollouts/mine/notes.md",
    }


def test_a_file_that_both_sides_added_is_a_marked_conflict(made: GitWorkspace, newer: Path) -> None:
    made.write("rollouts/mine/notes.md", "of a person\n")
    made.commit()
    merged = update_all(Workspace(made.root), ["mine"], newer)[0]
    assert merged.conflicts == ["rollouts/mine/notes.md"]
    text = (made.root / "rollouts/mine/notes.md").read_text()
    assert "of a person" in text
    assert "new in 9" in text


def test_git_variables_of_a_hook_and_hooks_of_a_person_do_not_matter(
    made: GitWorkspace, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "hooks" / "post-commit"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\thooksPath = {hook.parent}\n\tautocrlf = true\n[commit]\n\tgpgsign = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(made.root / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(made.root))
    head = made.git("rev-parse", "HEAD")
    merged = update_all(Workspace(made.root), ["mine"], newer)[0]
    assert merged.added == ["rollouts/mine/notes.md"]
    assert made.git("rev-parse", "HEAD") == head
    assert b"\r" not in (made.root / "rollouts/mine/main.py").read_bytes()
    assert not (tmp_path / "ran").exists()
