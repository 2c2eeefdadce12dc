"""Bringing a workspace or rollout to the newest version of its template, without losing what a person wrote.

copier's own update does the three-way merge, from the versions in the bundle. It works in a copy of the files that
the template makes, so it never meets what else is in the repository, and an update that fails has changed nothing.
Files a person deleted stay deleted. Nothing starts on uncommitted changes, so git can always undo it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.errors import Conflict, NotFound, OsmosisError, ValidationError

from .bundle import BUNDLE, scratch_git, version_key, versions
from .git import read_source
from .layout import Workspace
from .templates import (
    RECORD_NAME,
    WORKSPACE,
    TemplateRecord,
    copier_data,
    current_version,
    find_template,
    read_record,
    record_text,
    render_raw,
    templates_dir,
)

_ANSWERS = ".copier-answers.yml"
Files = dict[str, bytes]
"""Content by path, with `/`."""


@dataclass(slots=True)
class Instance:
    """A folder that was made from a template."""

    label: str
    """`workspace`, or the rollout's name."""
    folder: Path
    record: TemplateRecord
    latest: str
    """Version of the installed templates."""

    @property
    def outdated(self) -> bool:
        return version_key(self.record.version) < version_key(self.latest)


@dataclass(slots=True)
class Merged:
    """What an update did, by relative path."""

    label: str
    old: str
    new: str
    updated: list[str] = field(default_factory=list)
    """Taken as the template has them, or merged without conflict."""
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Written with conflict markers."""
    kept: list[str] = field(default_factory=list)
    """Left alone although the template changed them: deleted or renamed here."""


def instances(workspace: Workspace, folder: Path | None = None) -> list[Instance]:
    """The workspace itself and its rollouts, as far as they say which template they came from."""
    latest = current_version(folder)
    found = []
    for label, place in [(WORKSPACE, workspace.root), *((r.name, r.path) for r in workspace.rollouts())]:
        if (record := read_record(place)) is not None:
            found.append(Instance(label, place, record, latest))
    return found


def update_all(workspace: Workspace, labels: list[str], folder: Path | None = None) -> list[Merged]:
    """Merge the newest version of their templates into these instances.

    Raises, before anything is written: NotFound for a label without a template, Conflict on uncommitted changes.
    """
    source = folder or templates_dir()
    known = {i.label: i for i in instances(workspace, source)}
    for label in labels:
        if label not in known:
            hint = f"created from a template: {', '.join(known) or 'nothing here'}"
            raise NotFound(f"{label} was not created from a template", hint=hint)
        if known[label].record.template != WORKSPACE:
            find_template(known[label].record.template, source)
    _require_clean(workspace)
    return [_update_one(workspace, known[label], source) for label in labels]


def _update_one(workspace: Workspace, instance: Instance, source: Path) -> Merged:
    old = instance.record
    merged = Merged(instance.label, old.version, instance.latest)
    if not instance.outdated:
        return merged
    if old.version not in (known := versions(source)):
        raise OsmosisError(
            f"this installation does not know version {old.version} of the templates (it has {', '.join(known)})",
            hint="pip install --upgrade osmosis-ai",
        )
    new = TemplateRecord(old.template, instance.latest, old.answers)
    with tempfile.TemporaryDirectory(prefix="osmosis-update-") as scratch, _sealed_git():
        room = Path(scratch)
        base = _rendered(old, room / "base", source / BUNDLE)
        theirs = _rendered(new, room / "theirs", source / BUNDLE)
        ours = {n: (workspace.root / n).read_bytes() for n in base | theirs if (workspace.root / n).is_file()}
        merged.kept = [n for n in sorted(base) if base[n] != theirs.get(n) and _stays(n, base, ours, theirs)]
        given = {name: content for name, content in ours.items() if name not in merged.kept}
        after, merged.conflicts = _by_copier(room / "project", given, old, new, source / BUNDLE)
    _write(workspace.root, given, after, merged)
    (instance.folder / RECORD_NAME).write_text(record_text(new), "utf-8")
    return merged


@contextmanager
def _sealed_git() -> Iterator[None]:
    """No variable of the person, such as `GIT_DIR` inside a hook, and none of their hooks reach the git of copier."""
    from plumbum import local  # what copier starts git with

    with local.env():
        local.env.clear()
        local.env.update(scratch_git(Path()).environ)
        yield


def _rendered(record: TemplateRecord, dest: Path, bundle: Path) -> Files:
    names = render_raw(record, dest, bundle)
    return {name: (dest / name).read_bytes() for name in names if not name.endswith(RECORD_NAME)}


def _stays(name: str, base: Files, ours: Files, theirs: Files) -> bool:
    """Is this left alone: a file that was deleted here, or that the template gave up and a person changed."""
    return name in theirs if name not in ours else name not in theirs and ours[name] != base[name]


def _by_copier(
    project: Path, files: Files, old: TemplateRecord, new: TemplateRecord, bundle: Path
) -> tuple[Files, list[str]]:
    """The files after copier's update in a repository of their own, and which of them have conflict markers."""
    import copier

    answers = {"_src_path": str(bundle), "_commit": f"v{old.version}", **copier_data(old)}
    for name, content in {**files, _ANSWERS: json.dumps(answers).encode()}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
    git = scratch_git(project)
    git.run("init", "--quiet")
    git.run("add", "--all", "--force", ".")
    git.run("commit", "--quiet", "-m", "before the update")
    data = copier_data(new)
    copier.run_update(
        project, data, vcs_ref=f"v{new.version}", defaults=True, overwrite=True, quiet=True, conflict="inline"
    )
    found = (p for p in project.rglob("*") if p.is_file() and ".git" not in p.relative_to(project).parts)
    after = {p.relative_to(project).as_posix(): p.read_bytes() for p in found if p.name != _ANSWERS}
    conflicts = git.text("diff", "--name-only", "-z", "--diff-filter=U").split("\0")
    return after, sorted(name for name in conflicts if name)


def _write(root: Path, before: Files, after: Files, merged: Merged) -> None:
    for name in sorted(before | after):
        if before.get(name) == after.get(name):
            continue
        if name not in after:
            (root / name).unlink()
            merged.removed.append(name)
            continue
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(after[name])
        if name not in merged.conflicts:
            (merged.updated if name in before else merged.added).append(name)


def _require_clean(workspace: Workspace) -> None:
    state = read_source(workspace.root)
    if state is None or state.commit is None:
        raise ValidationError(
            "an update needs a git repository with a commit, so that you can review and undo it",
            hint="git init && git add -A && git commit -m 'Before the update'",
        )
    changed = [*state.dirty, *state.untracked]
    if changed:
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise Conflict(
            f"uncommitted changes: {shown}", hint="git commit -am 'Before the update', then run the update again"
        )
