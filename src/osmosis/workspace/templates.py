"""Templates of workspaces and rollouts, rendered to a scratch folder first; `.template.toml` keeps version and
answers."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from osmosis.base.files import tomllib
from osmosis.base.git import Git, sealed_environ
from osmosis.base.installation import upgrade_command
from osmosis.errors import Conflict, NotFound, OsmosisError, ValidationError
from osmosis.records.api.workspaces import check_workspace_name
from osmosis.workspace.config_file import PROVIDER_KEYS, schema_files
from osmosis.workspace.git import commit_paths, init_repository, read_source
from osmosis.workspace.layout import Workspace, check_rollout_name

RECORD_NAME = ".template.toml"
WORKSPACE = "workspace"
CLAUDE_SKILLS = ".claude/skills"  # A link: Claude reads the skills of every coding agent


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    name: str
    summary: str
    model: str
    extra: str = ""
    try_command: str = "osmosis test {name} --limit 3"


@dataclass(slots=True)
class TemplateRecord:
    template: str
    version: str
    answers: dict[str, Any] = field(default_factory=dict)


def templates_dir() -> Path:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_templates", package.parent.parent / "templates"):
        if (folder / "VERSION").is_file():
            return folder
    message = "the templates are missing from this installation"
    raise OsmosisError(message, hint=f"install it again: {upgrade_command()}")


def current_version(folder: Path | None = None) -> str:
    return ((folder or templates_dir()) / "VERSION").read_text("utf-8").strip()


def list_templates(folder: Path | None = None) -> list[TemplateInfo]:
    table = tomllib.loads(((folder or templates_dir()) / "rollout" / "templates.toml").read_text("utf-8"))
    return [TemplateInfo(name, **entry) for name, entry in table.items()]


def find_template(name: str, folder: Path | None = None) -> TemplateInfo:
    names = {t.name: t for t in list_templates(folder)}
    if name in names:
        return names[name]
    near = get_close_matches(name, names, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else f"one of: {', '.join(names)}"
    raise NotFound(f"there is no template {name!r}", hint=f"{hint} (osmosis template show)")


def template_files(name: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="osmosis-template-") as scratch:
        rendered = render_raw(rollout_record(name, "example", {}), Path(scratch))
    return [p.replace("example", "<name>") for p in rendered]


def render_workspace(dest: Path, answers: Mapping[str, Any], *, force: bool = False, keep: bool = False) -> list[str]:
    record = TemplateRecord(WORKSPACE, current_version(), {"name": str(answers.get("name") or dest.name)})
    with tempfile.TemporaryDirectory(prefix="osmosis-template-") as scratch:
        rendered = render_raw(record, Path(scratch))
        for relative, text in schema_files().items():
            (Path(scratch) / relative).write_text(text, "utf-8")
            rendered.append(relative)
        (Path(scratch) / CLAUDE_SKILLS).parent.mkdir()
        (Path(scratch) / CLAUDE_SKILLS).symlink_to("../.agents/skills")
        rendered.append(CLAUDE_SKILLS)
        if keep:
            rendered = [p for p in rendered if not os.path.lexists(dest / p)]
        return _place(Path(scratch), rendered, dest, force=force)


def render_rollout(
    name: str, template: str, dest: Path, answers: Mapping[str, Any] | None = None, force: bool = False
) -> list[str]:
    check_rollout_name(name)
    record = rollout_record(template, name, answers or {})
    with tempfile.TemporaryDirectory(prefix="osmosis-template-") as scratch:
        return _place(Path(scratch), render_raw(record, Path(scratch)), dest, force=force)


def rollout_record(template: str, name: str, answers: Mapping[str, Any]) -> TemplateRecord:
    info = find_template(template)
    model = str(answers.get("model") or info.model)
    base_url, key = str(answers.get("base_url") or ""), str(answers.get("api_key_env") or "")
    full = {"name": name, "model": model, "base_url": base_url, "api_key_env": key}
    return TemplateRecord(template, current_version(), full)


def render_raw(record: TemplateRecord, dest: Path, source: Path | None = None) -> list[str]:
    import copier

    where, ref = (str(source), f"v{record.version}") if source else (str(templates_dir()), None)
    copier.run_copy(where, dest, data=copier_answers(record), vcs_ref=ref, defaults=True, overwrite=True, quiet=True)
    top = dest if record.template == WORKSPACE else dest / "rollouts" / str(record.answers["name"])
    (top / RECORD_NAME).write_text(format_record(record), "utf-8")
    return sorted(p.relative_to(dest).as_posix() for p in dest.rglob("*") if p.is_file())


def copier_answers(record: TemplateRecord) -> dict[str, Any]:
    return {**record.answers, "template": record.template, "secret": _secret(record.answers)}


def _secret(answers: Mapping[str, Any]) -> str:
    if answers.get("base_url"):
        return str(answers.get("api_key_env") or "")
    return PROVIDER_KEYS.get(str(answers.get("model", "")).partition("/")[0], "")


def format_record(record: TemplateRecord) -> str:
    rows = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in record.answers.items()]
    return (
        "# What this was made from; `osmosis template update` reads it. Keep it in git.\n"
        f'template = "{record.template}"\nversion = "{record.version}"\n\n[answers]\n' + "\n".join(rows) + "\n"
    )


def read_record(path: Path) -> TemplateRecord | None:
    try:
        table = tomllib.loads((path / RECORD_NAME).read_text("utf-8"))
        return TemplateRecord(str(table["template"]), str(table["version"]), dict(table.get("answers") or {}))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place(scratch: Path, made: list[str], dest: Path, *, force: bool) -> list[str]:
    in_the_way = [p for p in made if _differs(scratch / p, dest / p)]
    parents = {dest / parent for name in made for parent in list(Path(name).parents)[:-1]}
    in_their_place = (path for path in parents if path.is_symlink() or (path.exists() and not path.is_dir()))
    blocked = sorted(path.relative_to(dest).as_posix() for path in in_their_place)
    if blocked:
        message = f"{', '.join(blocked)}: a file or link stands where a folder is needed"
        raise Conflict(message, hint=f"move {blocked[0]} away first", paths=blocked)
    if in_the_way and not force:
        count = f"{len(in_the_way)} existing files" if len(in_the_way) > 1 else "1 existing file"
        message = f"{count} would be overwritten: {', '.join(in_the_way)}"
        raise Conflict(message, hint="choose another name, or use --force to replace them", paths=in_the_way)
    new = [dest / relative for relative in made if not os.path.lexists(dest / relative)]
    try:
        for relative in made:
            target = dest / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():
                target.unlink()
            shutil.copyfile(scratch / relative, target, follow_symlinks=False)
    except BaseException:
        for target in new:  # a full disk or Ctrl-C: no half of a rollout stays behind
            target.unlink(missing_ok=True)
        raise
    return made


def _differs(new: Path, old: Path) -> bool:
    if new.is_symlink() and old.is_symlink():
        return new.readlink() != old.readlink()
    if old.is_symlink() or old.is_dir():
        return True
    if new.is_symlink():
        return old.exists()
    return old.exists() and old.read_bytes() != new.read_bytes()


@dataclass(slots=True)
class Created:
    root: Path
    name: str
    files: list[str] = field(default_factory=list)
    git: bool = False
    commit: str | None = None


def check_destination(dest: Path, *, here: bool) -> None:
    parts = ("HEAD", "objects", "refs")
    inside = next((path for path in (dest, *dest.parents) if all((path / part).exists() for part in parts)), None)
    if inside is not None:
        is_git = "is a git directory without a working tree"
        problem = is_git if inside == dest else f"is inside the git directory {inside}"
        raise Conflict(f"{dest} {problem}", hint=f"git clone {inside} and init there, or choose another folder")
    if here or not dest.exists():
        return
    if not dest.is_dir():
        raise Conflict(f"{dest} is a file", hint="choose another name")
    if any(dest.iterdir()):
        kind = "is already a workspace" if (dest / "rollouts").is_dir() else "exists and is not empty"
        raise Conflict(f"{dest} {kind}", hint=f"cd {dest.name} && osmosis init --here, or choose another name")


def create_workspace(
    dest: Path, name: str, *, here: bool = False, template: str | None = None, git: bool = True, force: bool = False
) -> Created:
    """Render a workspace into `dest`, with a first rollout when a template is named, and commit it; raise before
    anything is written. With `here` the folder may hold files, which are kept unless `force`."""
    check_workspace_name(name)
    check_destination(dest, here=here)
    if template is not None:
        find_template(template)
        check_rollout_name(template)
    made = Created(dest, name)
    with _undone_on_error(dest, made):
        dest.mkdir(parents=True, exist_ok=True)
        made.files += render_workspace(dest, {"name": name}, force=force, keep=here and not force)
        if template is not None:
            made.files += render_rollout(template, template, dest, {}, force)
        if git:
            init_repository(dest)
            made.git = True
            if made.files:
                made.commit = commit_paths(dest, "Start the workspace", made.files)
        else:
            made.git = (dest / ".git").exists()
    return made


@contextlib.contextmanager
def _undone_on_error(dest: Path, made: Created) -> Iterator[None]:
    existed, had_git = dest.exists(), (dest / ".git").exists()
    before = {p for p in dest.rglob("*") if ".git" not in p.parts} if existed else set()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(dest, ignore_errors=True)
        else:
            if not had_git:
                shutil.rmtree(dest / ".git", ignore_errors=True)
            folders = {dest / parent for name in made.files for parent in Path(name).parents} - {dest}
            for path in [dest / name for name in made.files]:
                if path not in before:
                    path.unlink(missing_ok=True)
            for folder in sorted(folders - before, reverse=True):
                with contextlib.suppress(OSError):  # not empty: somebody else's file is in it
                    folder.rmdir()
        raise


BUNDLE = "templates.bundle"
_SIGNED = {"NAME": "osmosis", "EMAIL": "osmosis@localhost", "DATE": "2026-01-01T00:00:00+0000"}
_FIXED = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _SIGNED.items()}
_ANSWERS = ".copier-answers.yml"
Files = dict[str, bytes]  # Content by path, with `/`


def scratch_git(folder: Path) -> Git:
    """Return git without the person's configuration, with fixed author, date and line endings."""
    settings = {"core.autocrlf": "false", "advice.detachedHead": "false", "init.defaultBranch": "main"}
    return Git(folder, {**sealed_environ(os.environ, settings=settings), **_FIXED})


def versions(folder: Path | None = None) -> list[str]:
    bundle = (folder or templates_dir()) / BUNDLE
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
    record: TemplateRecord
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
    latest = current_version(folder)
    made_from = []
    for label, directory in [(WORKSPACE, workspace.root), *((r.name, r.path) for r in workspace.rollouts())]:
        if (record := read_record(directory)) is not None:
            made_from.append(Instance(label, directory, record, latest))
    return made_from


def update_all(workspace: Workspace, labels: list[str], folder: Path | None = None) -> list[Merged]:
    source = folder or templates_dir()
    by_label = {i.label: i for i in list_instances(workspace, source)}
    for label in labels:
        if label not in by_label:
            hint = f"created from a template: {', '.join(by_label) or 'nothing here'}"
            raise NotFound(f"{label} was not created from a template", hint=hint)
        if by_label[label].record.template != WORKSPACE:
            find_template(by_label[label].record.template, source)
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
    new = TemplateRecord(old.template, instance.latest, old.answers)
    with tempfile.TemporaryDirectory(prefix="osmosis-update-") as scratch, _sealed_git():
        room = Path(scratch)
        base = _rendered(old, room / "base", source / BUNDLE)
        theirs = _rendered(new, room / "theirs", source / BUNDLE)
        ours = {n: (workspace.root / n).read_bytes() for n in base | theirs if (workspace.root / n).is_file()}
        merged.kept = [n for n in sorted(base) if base[n] != theirs.get(n) and _stays(n, base, ours, theirs)]
        answers = {name: content for name, content in ours.items() if name not in merged.kept}
        after, merged.conflicts = _by_copier(room / "project", answers, old, new, source / BUNDLE)
    _write(workspace.root, answers, after, merged)
    (instance.folder / RECORD_NAME).write_text(format_record(new), "utf-8")
    return merged


@contextmanager
def _sealed_git() -> Iterator[None]:
    """Keep the person's variables (`GIT_DIR` inside a hook) and hooks from copier's git."""
    from plumbum import local  # what copier starts git with

    with local.env():
        local.env.clear()
        local.env.update(scratch_git(Path()).environ)
        yield


def _rendered(record: TemplateRecord, dest: Path, bundle: Path) -> Files:
    names = render_raw(record, dest, bundle)
    return {name: (dest / name).read_bytes() for name in names if not name.endswith(RECORD_NAME)}


def _stays(name: str, base: Files, ours: Files, theirs: Files) -> bool:
    """Return whether a file is left alone: deleted here, or removed from the template and changed by a person."""
    return name in theirs if name not in ours else name not in theirs and ours[name] != base[name]


def _by_copier(
    project: Path, files: Files, old: TemplateRecord, new: TemplateRecord, bundle: Path
) -> tuple[Files, list[str]]:
    import copier

    answers = {"_src_path": str(bundle), "_commit": f"v{old.version}", **copier_answers(old)}
    for name, content in {**files, _ANSWERS: json.dumps(answers).encode()}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
    git = scratch_git(project)
    git.run("init", "--quiet")
    git.run("add", "--all", "--force", ".")
    git.run("commit", "--quiet", "-m", "before the update")
    data = copier_answers(new)
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
