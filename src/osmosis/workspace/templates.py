"""Templates of workspaces and rollouts, rendered to a scratch folder first; `.template.toml` keeps version and
answers."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from osmosis.base.files import tomllib
from osmosis.base.installation import upgrade_command
from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.records.api.workspaces import check_workspace_name
from osmosis.records.base import describe_fields
from osmosis.records.config.benchmark import BenchmarkConfig
from osmosis.records.config.check import CONFIGS
from osmosis.workspace.config_file import PROVIDER_KEYS
from osmosis.workspace.git import commit_paths, init_repository
from osmosis.workspace.layout import check_rollout_name

RECORD_NAME = ".template.toml"
WORKSPACE = "workspace"
CLAUDE_SKILLS = ".claude/skills"
"""A link: Claude reads the skills of every coding agent."""


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


def schema_files() -> dict[str, str]:
    return {f"configs/{kind}.schema.json": schema_text(kind) for kind in (*CONFIGS, "benchmark")}


def schema_text(kind: str) -> str:
    schema = describe_fields(BenchmarkConfig if kind == "benchmark" else CONFIGS[kind]).model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


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
