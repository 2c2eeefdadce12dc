"""Diagnose a workspace and its machine. Repairs only create what is missing or refresh schemas."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from osmosis.base import hardware as machine_facts, paths
from osmosis.base.git import Git, GitError
from osmosis.base.installation import install_command
from osmosis.records.base import Problem, Severity
from osmosis.records.run.source import Source
from osmosis.sandbox import Level, probe
from osmosis.workspace import preflight, templates
from osmosis.workspace.config_file import ConfigFile, check_file, schema_files
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import FILES, FOLDERS, Workspace
from osmosis.workspace.preflight import syntax_errors

LOW_DISK = 2 * 1024**3
OLDEST_GIT = (2, 25)
IGNORED = (".osmosis/", ".env")


def diagnose(workspace: Workspace, source: Source | None) -> list[Problem]:
    return [
        *preflight.check_folder(workspace),
        *_configs(workspace),
        *(problem for folder in workspace.rollouts() for problem in syntax_errors(workspace.root, folder.name)),
        *_repository(source),
        *_ignored(workspace, source),
        *_generated(workspace),
        *[
            Problem.info(
                "template-outdated",
                f"{i.label} comes from version {i.record.version} of its template; {i.latest} is available",
                f"{workspace.relative(i.folder)}/.template.toml",
                f"osmosis template update {i.label}",
            )
            for i in templates.list_instances(workspace)
            if i.outdated
        ],
    ]


def check_machine(environ: Mapping[str, str]) -> list[Problem]:
    return [*_git_version(), *_uv(environ), *_disk(environ), *_training(environ), *_sandbox()]


def try_read_source(workspace: Workspace) -> Source | None:
    try:
        return read_source(workspace.root)
    except GitError:
        return None


def _configs(workspace: Workspace) -> list[Problem]:
    issues: list[Problem] = []
    named: set[str] = set()
    for kind, path in workspace.configs():
        file = ConfigFile(kind, path, workspace.relative(path))
        config, problems = check_file(file, workspace)
        issues += problems
        if config is None:
            continue
        for table, environment in config.environments.items():
            named.add(environment.rollout)
            dataset, key = environment.dataset, f"{table}.dataset"
            if workspace.local_dataset(dataset) is None:
                problem = f"no file in data/ for the dataset {dataset}"
                fix = f"osmosis dataset download {dataset} -o data/, or add data/{dataset}.jsonl"
                issues.append(Problem.info("no-local-dataset", problem, f"{file.where(key)}: {key}", fix))
    for folder in workspace.rollouts():
        if folder.name not in named and not issues:
            problem, fix = f"no config uses the rollout {folder.name}", f"add configs/eval/{folder.name}.toml"
            issues.append(Problem.info("no-config", problem, f"rollouts/{folder.name}", fix))
    return issues


def _repository(source: Source | None) -> list[Problem]:
    problems = [p if p.code != "no-remote" else preflight.as_warning(p) for p in preflight.check_repository(source)]
    if source is None:
        return problems
    if source.operation and not source.conflicts:
        problems.append(preflight.as_warning(preflight.unfinished_operation(source)))
    problems += [p if p.code == "conflict" else preflight.as_warning(p) for p in preflight.uncommitted(source)]
    if source.remote_url and (unpushed := preflight.unpushed(source)):
        problems.append(preflight.as_warning(unpushed))
    return problems


def _ignored(workspace: Workspace, source: Source | None) -> list[Problem]:
    if source is None:
        return []
    git = Git(workspace.root)
    problems = []
    for name in IGNORED:
        # A folder is ignored when a file in it would be.
        probe = f"{name}x" if name.endswith("/") else name
        try:
            git.text("check-ignore", "--quiet", "--no-index", probe)
        except GitError:
            problem = f"{name} is not ignored by git"
            problems.append(Problem.error("not-ignored", problem, ".gitignore", "osmosis doctor --fix"))
    tracked = [p for p in git.text("ls-files", "-z", "--", ".env", ".osmosis").split("\0") if p]
    if tracked:
        problem = f"{', '.join(tracked[:3])} is tracked by git"
        top = tracked[0].split("/")[0]
        fix = f"git rm -r --cached {top} && git commit -m 'forget {top}', then rotate any secret in it"
        problems.append(Problem.error("secrets-in-git", problem, tracked[0], fix))
    return problems


def _generated(workspace: Workspace) -> list[Problem]:
    problems = []
    for relative, text in schema_files().items():
        path = workspace.root / relative
        if not path.is_file() or path.read_text("utf-8", "replace") != text:
            state = "is missing" if not path.is_file() else "was generated by another version of osmosis"
            problem = f"{relative} {state}; editors use it to complete configs"
            problems.append(Problem.info("schema", problem, relative, "osmosis doctor --fix"))
    return problems


def _git_version() -> list[Problem]:
    try:
        output = Git(Path.home()).text("--version")
    except GitError as error:
        return [Problem.error("no-git", error.message, "git", error.hint or "install git")]
    numbers = [int(n) for n in output.split()[2].split(".")[:2] if n.isdigit()] if len(output.split()) > 2 else []
    if tuple(numbers) < OLDEST_GIT:
        return [Problem.error("old-git", f"{output} is too old", "git", "install git 2.25 or newer")]
    return []


def find_uv(environ: Mapping[str, str]) -> str | None:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv", path=environ.get("PATH"))


def _uv(environ: Mapping[str, str]) -> list[Problem]:
    if find_uv(environ):
        return []
    problem = "uv is missing; it creates the environments of rollouts"
    return [Problem.error("no-uv", problem, "uv", install_command("uv"))]


def _disk(environ: Mapping[str, str]) -> list[Problem]:
    problems = []
    devices = set()
    for name, folder in (("data", paths.data_dir(environ)), ("cache", paths.cache_dir(environ))):
        directory = folder
        while not directory.exists():
            directory = directory.parent
        usage = shutil.disk_usage(directory)
        device = directory.stat().st_dev
        if usage.free < LOW_DISK and device not in devices:
            devices.add(device)
            problem = f"only {usage.free / 1e9:.1f} GB free for the {name} folder"
            fix = f"free up space, or move the folder: OSMOSIS_{name.upper()}_DIR"
            problems.append(Problem.warning("low-disk", problem, str(folder), fix))
    return problems


def training(environ: Mapping[str, str]) -> tuple[bool, str]:
    if machine_facts.find_python(machine_facts.TRAINER_PYTHON, environ) is None:
        needed = ".".join(map(str, machine_facts.TRAINER_PYTHON))
        return False, f"impossible on this machine: there is no Python {needed} or newer"
    gpus = machine_facts.list_gpus(environ)
    if not gpus:
        return True, "small models only: this machine has no NVIDIA GPU"
    first = f"{gpus[0].name}, {gpus[0].memory_bytes / 1e9:.0f} GB"
    return True, f"possible on this machine: {len(gpus)} x {first}"


def _training(environ: Mapping[str, str]) -> list[Problem]:
    possible, problem = training(environ)
    fix = "" if possible else "install python3.12 or newer beside the present Python; nothing else has to change"
    return [Problem.info("training", problem, "training", fix)]


def _sandbox() -> list[Problem]:
    capabilities = probe()
    problem = f"rollouts of a platform on this machine run at {capabilities.describe}"
    fix = "" if capabilities.level > Level.LANDLOCK else f"{capabilities.fix}; until then run only code you trust"
    severity: Severity = "info" if capabilities.level > Level.LANDLOCK else "warning"
    return [Problem(code="sandbox", what=problem, where="sandbox", fix=fix, severity=severity)]


def repair(workspace: Workspace, source: Source | None) -> list[str]:
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
    record = templates.TemplateRecord(templates.WORKSPACE, templates.current_version(), {"name": workspace.name})
    with tempfile.TemporaryDirectory(prefix="osmosis-doctor-") as scratch:
        templates.render_raw(record, Path(scratch))
        for name in missing:
            target = workspace.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(scratch) / name, target)
    return [f"created {name}" for name in missing]


def _through_link(root: Path, name: str) -> bool:
    spot = root
    for part in Path(name).parts:
        spot = spot / part
        if spot.is_symlink():
            return True
    return False
