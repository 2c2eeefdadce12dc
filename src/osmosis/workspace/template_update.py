"""Update what a template made and keep what a person wrote: copier merges in a copy of the template's files."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.base.git import Git, sealed_environ
from osmosis.base.installation import upgrade_command
from osmosis.errors import Conflict, NotFound, OsmosisError, ValidationError
from osmosis.workspace import templates
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace

BUNDLE = "templates.bundle"
_SIGNED = {"NAME": "osmosis", "EMAIL": "osmosis@localhost", "DATE": "2026-01-01T00:00:00+0000"}
_FIXED = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _SIGNED.items()}
_ANSWERS = ".copier-answers.yml"
Files = dict[str, bytes]
"""Content by path, with `/`."""


def scratch_git(folder: Path) -> Git:
    """Return git without the person's configuration, with fixed author, date and line endings."""
    settings = {"core.autocrlf": "false", "advice.detachedHead": "false", "init.defaultBranch": "main"}
    return Git(folder, {**sealed_environ(os.environ, settings=settings), **_FIXED})


def versions(folder: Path | None = None) -> list[str]:
    bundle = (folder or templates.templates_dir()) / BUNDLE
    if not bundle.is_file():
        return []
    heads = scratch_git(bundle.parent).text("bundle", "list-heads", str(bundle)).splitlines()
    return sorted([line.rpartition("refs/tags/v")[2] for line in heads if "refs/tags/v" in line], key=version_key)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


@dataclass(slots=True)
class Instance:
    label: str
    folder: Path
    record: templates.TemplateRecord
    latest: str

    @property
    def outdated(self) -> bool:
        return version_key(self.record.version) < version_key(self.latest)


@dataclass(slots=True)
class Merged:
    label: str
    old: str
    new: str
    updated: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Left alone although the template changed them: deleted or renamed here."""


def list_instances(workspace: Workspace, folder: Path | None = None) -> list[Instance]:
    latest = templates.current_version(folder)
    made_from = []
    for label, directory in [(templates.WORKSPACE, workspace.root), *((r.name, r.path) for r in workspace.rollouts())]:
        if (record := templates.read_record(directory)) is not None:
            made_from.append(Instance(label, directory, record, latest))
    return made_from


def update_all(workspace: Workspace, labels: list[str], folder: Path | None = None) -> list[Merged]:
    source = folder or templates.templates_dir()
    by_label = {i.label: i for i in list_instances(workspace, source)}
    for label in labels:
        if label not in by_label:
            hint = f"created from a template: {', '.join(by_label) or 'nothing here'}"
            raise NotFound(f"{label} was not created from a template", hint=hint)
        if by_label[label].record.template != templates.WORKSPACE:
            templates.find_template(by_label[label].record.template, source)
    state = read_source(workspace.root)
    if state is None or state.commit is None:
        message = "an update needs a git repository with a commit, so that you can review and undo it"
        raise ValidationError(message, hint="git init && git add -A && git commit -m 'Before the update'")
    changed = [*state.dirty, *state.untracked]
    if changed:
        names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        message = f"uncommitted changes: {names}"
        raise Conflict(message, hint="git commit -am 'Before the update', then run the update again")
    return [_update_one(workspace, by_label[label], source) for label in labels]


def _update_one(workspace: Workspace, instance: Instance, source: Path) -> Merged:
    old = instance.record
    merged = Merged(instance.label, old.version, instance.latest)
    if not instance.outdated:
        return merged
    if old.version not in (version := versions(source)):
        raise OsmosisError(
            f"this installation does not know version {old.version} of the templates (it has {', '.join(version)})",
            hint=upgrade_command(),
        )
    new = templates.TemplateRecord(old.template, instance.latest, old.answers)
    with tempfile.TemporaryDirectory(prefix="osmosis-update-") as scratch, _sealed_git():
        room = Path(scratch)
        base = _rendered(old, room / "base", source / BUNDLE)
        theirs = _rendered(new, room / "theirs", source / BUNDLE)
        ours = {n: (workspace.root / n).read_bytes() for n in base | theirs if (workspace.root / n).is_file()}
        merged.kept = [n for n in sorted(base) if base[n] != theirs.get(n) and _stays(n, base, ours, theirs)]
        answers = {name: content for name, content in ours.items() if name not in merged.kept}
        after, merged.conflicts = _by_copier(room / "project", answers, old, new, source / BUNDLE)
    _write(workspace.root, answers, after, merged)
    (instance.folder / templates.RECORD_NAME).write_text(templates.format_record(new), "utf-8")
    return merged


@contextmanager
def _sealed_git() -> Iterator[None]:
    """Keep the person's variables (`GIT_DIR` inside a hook) and hooks from copier's git."""
    from plumbum import local  # what copier starts git with

    with local.env():
        local.env.clear()
        local.env.update(scratch_git(Path()).environ)
        yield


def _rendered(record: templates.TemplateRecord, dest: Path, bundle: Path) -> Files:
    names = templates.render_raw(record, dest, bundle)
    return {name: (dest / name).read_bytes() for name in names if not name.endswith(templates.RECORD_NAME)}


def _stays(name: str, base: Files, ours: Files, theirs: Files) -> bool:
    """Return whether a file is left alone: deleted here, or removed from the template and changed by a person."""
    return name in theirs if name not in ours else name not in theirs and ours[name] != base[name]


def _by_copier(
    project: Path, files: Files, old: templates.TemplateRecord, new: templates.TemplateRecord, bundle: Path
) -> tuple[Files, list[str]]:
    import copier

    answers = {"_src_path": str(bundle), "_commit": f"v{old.version}", **templates.copier_answers(old)}
    for name, content in {**files, _ANSWERS: json.dumps(answers).encode()}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
    git = scratch_git(project)
    git.run("init", "--quiet")
    git.run("add", "--all", "--force", ".")
    git.run("commit", "--quiet", "-m", "before the update")
    data = templates.copier_answers(new)
    copier.run_update(
        project, data, vcs_ref=f"v{new.version}", defaults=True, overwrite=True, quiet=True, conflict="inline"
    )
    listing = (p for p in project.rglob("*") if p.is_file() and ".git" not in p.relative_to(project).parts)
    after = {p.relative_to(project).as_posix(): p.read_bytes() for p in listing if p.name != _ANSWERS}
    return after, sorted(name for name in git.text("diff", "--name-only", "-z", "--diff-filter=U").split("\0") if name)


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
