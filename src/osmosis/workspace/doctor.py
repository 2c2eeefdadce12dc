"""Everything that could be wrong with a workspace and its machine, as findings with their fixes.

Reads files, git and the machine; asks no platform and imports no rollout: `cli.doctor` adds what those say. The
repairs only create what is missing or refresh what was generated; nothing a person wrote is changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from osmosis.base import machine as machine_facts
from osmosis.base import paths
from osmosis.base.git import Git, GitError
from osmosis.records.problem import Problem
from osmosis.records.source import Source
from osmosis.sandbox import probe

from . import findings
from .config_file import ConfigFile, check_file
from .git import read_source
from .layout import FILES, FOLDERS, Workspace
from .python_files import syntax_errors
from .template_update import instances
from .templates import WORKSPACE, TemplateRecord, current_version, render_raw, schema_files

LOW_DISK = 2 * 1024**3
OLDEST_GIT = (2, 25)
IGNORED = (".osmosis/", ".env")


def diagnose(workspace: Workspace, source: Source | None) -> list[Problem]:
    """Findings about the folder: layout, git, configs, datasets, ignored files, templates. No network."""
    return [
        *findings.of_folder(workspace),
        *_configs(workspace),
        *(problem for folder in workspace.rollouts() for problem in syntax_errors(workspace.root, folder.name)),
        *_repository(source),
        *_ignored(workspace, source),
        *_generated(workspace),
        *_templates(workspace),
    ]


def machine(environ: Mapping[str, str]) -> list[Problem]:
    """Findings about this machine: git, uv, disk, whether it can train, how rollout code is shut in."""
    return [*_git_version(), *_uv(environ), *_disk(environ), *_training(environ), *_sandbox()]


def source_of(workspace: Workspace) -> Source | None:
    """Git facts, None also when git cannot be asked (`machine` says why)."""
    try:
        return read_source(workspace.root)
    except GitError:
        return None


def _configs(workspace: Workspace) -> list[Problem]:
    found: list[Problem] = []
    named: set[str] = set()
    for kind, path in workspace.configs():
        file = ConfigFile(kind, path, workspace.relative(path))
        config, problems = check_file(file, workspace)
        found += problems
        if config is None:
            continue
        named.add(config.experiment.rollout)
        dataset = config.experiment.dataset
        if workspace.local_dataset(dataset) is None:
            found.append(
                Problem(
                    code="no-local-dataset",
                    what=f"no file in data/ for the dataset {dataset}",
                    where=f"{file.where('experiment.dataset')}: experiment.dataset",
                    fix=f"osmosis dataset download {dataset} -o data/, or add data/{dataset}.jsonl",
                    severity="info",
                )
            )
    for folder in workspace.rollouts():
        if folder.name not in named and not found:
            found.append(
                Problem(
                    code="no-config",
                    what=f"no config uses the rollout {folder.name}",
                    where=f"rollouts/{folder.name}",
                    fix=f"add configs/eval/{folder.name}.toml",
                    severity="info",
                )
            )
    return found


def _repository(source: Source | None) -> list[Problem]:
    found = [p if p.code != "no-remote" else findings.softer(p) for p in findings.of_repository(source)]
    if source is None:
        return found
    if source.operation and not source.conflicts:
        found.append(findings.softer(findings.unfinished(source)))
    found += [p if p.code == "conflict" else findings.softer(p) for p in findings.uncommitted(source)]
    if source.remote_url and (unpushed := findings.unpushed(source)):
        found.append(findings.softer(unpushed))
    return found


def _ignored(workspace: Workspace, source: Source | None) -> list[Problem]:
    if source is None:
        return []
    git = Git(workspace.root)
    found = []
    for name in IGNORED:
        # A folder is ignored when a file in it would be.
        probe = f"{name}x" if name.endswith("/") else name
        try:
            git.text("check-ignore", "--quiet", "--no-index", probe)
        except GitError:
            what = f"{name} is not ignored by git"
            found.append(Problem(code="not-ignored", what=what, where=".gitignore", fix="osmosis doctor --fix"))
    tracked = [p for p in git.text("ls-files", "-z", "--", ".env", ".osmosis").split("\0") if p]
    if tracked:
        what = f"{', '.join(tracked[:3])} is tracked by git"
        top = tracked[0].split("/")[0]
        fix = f"git rm -r --cached {top} && git commit -m 'forget {top}', then rotate any secret in it"
        found.append(Problem(code="secrets-in-git", what=what, where=tracked[0], fix=fix))
    return found


def _generated(workspace: Workspace) -> list[Problem]:
    found = []
    for relative, text in schema_files().items():
        path = workspace.root / relative
        if not path.is_file() or path.read_text("utf-8", "replace") != text:
            state = "is missing" if not path.is_file() else "was generated by another version of osmosis"
            found.append(
                Problem(
                    code="schema",
                    what=f"{relative} {state}; editors use it to complete configs",
                    where=relative,
                    fix="osmosis doctor --fix",
                    severity="info",
                )
            )
    return found


def _templates(workspace: Workspace) -> list[Problem]:
    return [
        Problem(
            code="template-outdated",
            what=f"{i.label} comes from version {i.record.version} of its template; {i.latest} is available",
            where=f"{workspace.relative(i.folder)}/.template.toml",
            fix=f"osmosis template update {i.label}",
            severity="info",
        )
        for i in instances(workspace)
        if i.outdated
    ]


def _git_version() -> list[Problem]:
    try:
        said = Git(Path.home()).text("--version")
    except GitError as error:
        return [Problem(code="no-git", what=error.message, where="git", fix=error.hint or "install git")]
    numbers = [int(n) for n in said.split()[2].split(".")[:2] if n.isdigit()] if len(said.split()) > 2 else []
    if tuple(numbers) < OLDEST_GIT:
        return [Problem(code="old-git", what=f"{said} is too old", where="git", fix="install git 2.25 or newer")]
    return []


def find_uv(environ: Mapping[str, str]) -> str | None:
    """The `uv` that makes rollout environments: the one that came with osmosis, else the one on PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv", path=environ.get("PATH"))


def _uv(environ: Mapping[str, str]) -> list[Problem]:
    if find_uv(environ):
        return []
    what = "uv is missing; it creates the environments of rollouts"
    return [Problem(code="no-uv", what=what, where="uv", fix="pip install uv")]


def _disk(environ: Mapping[str, str]) -> list[Problem]:
    found = []
    seen = set()
    for name, folder in (("data", paths.data_dir(environ)), ("cache", paths.cache_dir(environ))):
        place = folder
        while not place.exists():
            place = place.parent
        usage = shutil.disk_usage(place)
        device = place.stat().st_dev
        if usage.free < LOW_DISK and device not in seen:
            seen.add(device)
            what = f"only {usage.free / 1e9:.1f} GB free for the {name} folder"
            fix = f"free up space, or move the folder: OSMOSIS_{name.upper()}_DIR"
            found.append(Problem(code="low-disk", what=what, where=str(folder), fix=fix, severity="warning"))
    return found


def training(environ: Mapping[str, str]) -> tuple[bool, str]:
    """Whether a platform on this machine can train, and on what."""
    if machine_facts.find_python(machine_facts.TRAINER_PYTHON, environ) is None:
        needed = ".".join(map(str, machine_facts.TRAINER_PYTHON))
        return False, f"a platform on this machine cannot train: there is no Python {needed} or newer"
    found = machine_facts.gpus(environ)
    if not found:
        return True, "a platform on this machine can train small models: it has no NVIDIA GPU"
    first = f"{found[0].name}, {found[0].memory_bytes / 1e9:.0f} GB"
    return True, f"a platform on this machine can train: {len(found)} x {first}"


def _training(environ: Mapping[str, str]) -> list[Problem]:
    possible, what = training(environ)
    fix = "" if possible else "install python3.12 or newer beside the present Python; nothing else has to change"
    return [Problem(code="training", what=what, where="training", fix=fix, severity="info")]


def _sandbox() -> list[Problem]:
    here = probe()
    what = f"rollouts of a platform on this machine run at {here.describe}"
    fix = "" if here.level else f"{here.fix}; until then run only code you trust"
    return [Problem(code="sandbox", what=what, where="sandbox", fix=fix, severity="info")]


def repair(workspace: Workspace, source: Source | None) -> list[str]:
    """Create missing folders and files, refresh schemas, complete .gitignore; what was done, one line each."""
    done = []
    for name in FOLDERS:
        path = workspace.root / name
        if not path.exists() and not _through_link(workspace.root, name):
            path.mkdir(parents=True)
            (path / ".gitkeep").touch()
            done.append(f"created {name}/")
    done += _missing_files(workspace)
    for relative, text in schema_files().items():
        path = workspace.root / relative
        if path.parent.is_dir() and (not path.is_file() or path.read_text("utf-8", "replace") != text):
            path.write_text(text, "utf-8")
            done.append(f"wrote {relative}")
    lines = [name for name in IGNORED if any(p.what.startswith(f"{name} is not") for p in _ignored(workspace, source))]
    if lines:
        ignore = workspace.root / ".gitignore"
        text = ignore.read_text("utf-8") if ignore.is_file() else ""
        joint = "" if not text or text.endswith("\n") else "\n"
        ignore.write_text(text + joint + "\n".join(lines) + "\n", "utf-8")
        done.append(f"added {', '.join(lines)} to .gitignore")
    return done


def _missing_files(workspace: Workspace) -> list[str]:
    import tempfile

    missing = [name for name in FILES if not (workspace.root / name).exists()]
    missing = [name for name in missing if not _through_link(workspace.root, name)]
    if not missing:
        return []
    record = TemplateRecord(WORKSPACE, current_version(), {"name": workspace.name})
    with tempfile.TemporaryDirectory(prefix="osmosis-doctor-") as scratch:
        render_raw(record, Path(scratch))
        for name in missing:
            target = workspace.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(scratch) / name, target)
    return [f"created {name}" for name in missing]


def _through_link(root: Path, name: str) -> bool:
    """A link on the way would have us write outside the workspace."""
    spot = root
    for part in Path(name).parts:
        spot = spot / part
        if spot.is_symlink():
            return True
    return False
