"""Bringing a workspace or rollout to the newest version of its template, without losing what a person wrote.

A three-way merge per file: the old version rendered with the recorded answers is the base, the new version theirs.
What only one side changed is taken; what both changed is merged by git, with conflict markers where needed. Files
a person deleted stay deleted. Nothing starts on uncommitted changes, so git can always undo it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import Conflict, NotFound, ValidationError
from .bundle import checkout, version_key
from .git import git_at, read_source
from .layout import Workspace
from .templates import (
    RECORD_NAME,
    WORKSPACE,
    TemplateRecord,
    current_version,
    find_template,
    read_record,
    record_text,
    render_raw,
    schema_files,
    templates_dir,
)


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
            hint = f"these do: {', '.join(known) or 'nothing here'}"
            raise NotFound(f"{label} does not say which template it came from", hint=hint)
        if known[label].record.template != WORKSPACE:
            find_template(known[label].record.template, source)
    _require_clean(workspace)
    return [_update_one(workspace, known[label], source) for label in labels]


def _update_one(workspace: Workspace, instance: Instance, source: Path) -> Merged:
    record = instance.record
    merged = Merged(instance.label, record.version, instance.latest)
    if not instance.outdated:
        return merged
    with tempfile.TemporaryDirectory(prefix="osmosis-update-") as scratch:
        room = Path(scratch)
        checkout(record.version, room / "templates", source)
        _render(record, room / "base", room / "templates")
        newer = TemplateRecord(record.template, instance.latest, record.answers)
        _render(newer, room / "theirs", source)
        _merge_all(workspace, room, merged)
    (instance.folder / RECORD_NAME).write_text(record_text(newer), "utf-8")
    return merged


def _require_clean(workspace: Workspace) -> None:
    state = read_source(workspace.root)
    if state is None or state.commit is None:
        raise ValidationError(
            "an update needs a git repository with a commit, so that it can be looked at and undone",
            hint="git init && git add -A && git commit -m 'before the update'",
        )
    changed = [*state.dirty, *state.untracked]
    if changed:
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise Conflict(f"uncommitted changes: {shown}", hint="git commit -am 'before the update', then repeat")


def _render(record: TemplateRecord, dest: Path, folder: Path) -> None:
    dest.mkdir()
    render_raw(record, dest, folder)
    if record.template == WORKSPACE:
        # Generated from the installed records, not from a template version: refreshed, never merged.
        for relative in schema_files():
            (dest / relative).unlink(missing_ok=True)


def _merge_all(workspace: Workspace, room: Path, merged: Merged) -> None:
    base, theirs = room / "base", room / "theirs"
    names = {p.relative_to(side).as_posix() for side in (base, theirs) for p in side.rglob("*") if p.is_file()}
    for name in sorted(n for n in names if not n.endswith(RECORD_NAME)):
        _merge_one(workspace.root / name, base / name, theirs / name, name, merged)


def _merge_one(ours: Path, base: Path, theirs: Path, name: str, merged: Merged) -> None:
    old = base.read_bytes() if base.exists() else None
    new = theirs.read_bytes() if theirs.exists() else None
    mine = ours.read_bytes() if ours.is_file() else None
    if new in (old, mine):
        return
    if new is None:
        if mine == old:
            ours.unlink()
            merged.removed.append(name)
        elif mine is not None:
            merged.kept.append(name)
    elif mine is None:
        if old is not None:
            merged.kept.append(name)
            return
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.write_bytes(new)
        merged.added.append(name)
    elif mine == old:
        ours.write_bytes(new)
        merged.updated.append(name)
    else:
        clean = _merge_text(ours, base, theirs, merged)
        (merged.updated if clean else merged.conflicts).append(name)


def _merge_text(ours: Path, base: Path, theirs: Path, merged: Merged) -> bool:
    """git's own merge of one file, written in place; False when conflict markers remain."""
    if not base.exists():
        base.parent.mkdir(parents=True, exist_ok=True)
        base.touch()
    labels = ["-L", "yours", "-L", f"template {merged.old}", "-L", f"template {merged.new}"]
    command = ["git", "merge-file", *labels, str(ours), str(base), str(theirs)]
    status, _, _ = git_at(ours.parent).execute(command, with_extended_output=True, with_exceptions=False)
    return bool(status == 0)
