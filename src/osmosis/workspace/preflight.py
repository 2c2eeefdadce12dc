"""Problems of a workspace, its repository and the platform's copy, and which of them stop a submit."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.records.base import Problem
from osmosis.records.config.experiment import Experiment
from osmosis.records.run.source import PinnedCommit, RolloutFiles, Source, SyncState
from osmosis.workspace.git import find_pinned_commit, read_rollout_files, read_source
from osmosis.workspace.layout import FILES, FOLDERS, Workspace

# Which findings a person may overrule with --allow-dirty: the platform then runs what is synced.
OVERRULED = (
    "conflict", "dirty-rollout", "untracked-rollout", "unpushed", "not-synced", "branch-differs", "detached",
    "no-upstream",
)  # fmt: skip
# Which do not matter when the working tree itself is sent as a snapshot: it takes conflict markers for code.
BY_SNAPSHOT = (*OVERRULED[1:], "not-in-git", "no-such-rollout-synced", "behind")
INIT = "osmosis init --here --platform"


def as_warning(problem: Problem) -> Problem:
    return problem.model_copy(update={"severity": "warning"})


def check_folder(workspace: Workspace) -> list[Problem]:
    problems = []
    for name in FOLDERS:
        path = workspace.root / name
        if path.is_dir():
            continue
        problem = f"{name}/ is a file, not a folder" if path.exists() else f"{name}/ is missing"
        problems.append(Problem.error("missing-folder", problem, name, "osmosis doctor --fix"))
    for name in FILES:
        if not (workspace.root / name).is_file():
            problems.append(Problem.warning("missing-file", f"{name} is missing", name, "osmosis doctor --fix"))
    for folder in workspace.rollouts():
        where = f"rollouts/{folder.name}"
        if folder.entrypoint is None:
            fix = f"add {where}/main.py, or set [experiment].entrypoint in its configs"
            problem = "the rollout has no main.py"
            problems.append(Problem.warning("no-entrypoint", problem, where, fix))
        if folder.pyproject is None:
            problem = "the rollout has no pyproject.toml, so its environment contains only the SDK"
            fix = f"add {where}/pyproject.toml with its dependencies"
            problems.append(Problem.warning("no-pyproject", problem, where, fix))
    return problems


def check_repository(source: Source | None) -> Iterator[Problem]:
    if source is None:
        fix = "osmosis init --here, or: git init && git add -A && git commit -m 'First commit'"
        yield Problem.error("no-repository", "this workspace is not in a git repository", fix=fix)
        return
    if source.commit is None:
        fix = "git add -A && git commit -m 'First commit' && git push -u origin HEAD"
        yield Problem.error("no-commit", "the repository has no commit yet", fix=fix)
    if source.prefix:
        problem = f"the workspace is the folder {source.prefix.rstrip('/')} of a larger repository"
        fix = "give the workspace its own repository, with rollouts/ and configs/ at its top"
        yield Problem.error("nested-workspace", problem, source.prefix, fix)
    if source.remote_url is None:
        fix = f"{INIT}, or: git remote add origin <url>"
        yield Problem.error("no-remote", "the repository has no remote named origin", fix=fix)
    elif source.identity is None:
        problem = f"the remote {source.remote_url} does not end in owner/repository"
        yield Problem.error("bad-remote", problem, "origin", "git remote set-url origin <url>")


def unknown_remote(source: Source | None) -> Problem:
    which = f"the repository {source.identity}" if source and source.identity else "this repository"
    return Problem.error("unknown-remote", f"the platform does not know {which}", "origin", INIT)


def unfinished_operation(source: Source) -> Problem:
    return Problem.error("unfinished", f"git is in the middle of a {source.operation}", "HEAD", finish_command(source))


def uncommitted(source: Source, folder: str = "") -> Iterator[Problem]:
    directory = folder or "git"
    conflicts, dirty, new = (
        [path for path in paths if not folder or path.startswith(f"{folder}/")]
        for paths in (source.conflicts, source.dirty, source.untracked)
    )
    if conflicts:
        problem = f"{list_some(conflicts)} in conflict after a {source.operation or 'merge'}"
        yield Problem.error("conflict", problem, directory, finish_command(source))
    if changed := [path for path in dirty if path not in conflicts]:
        fix = "git commit -am 'Describe the change' && git push"
        problem = f"{list_some(changed)} changed but not committed"
        yield Problem.error("uncommitted", problem, directory, fix)
    if new:
        fix = f"git add {folder or '-A'} && git commit -m 'Add files' && git push, or list them in .gitignore"
        yield Problem.error("untracked", f"{list_some(new)} not in git", directory, fix)


def detached(source: Source, default: str | None) -> Problem:
    fix = f'git switch {default or "main"}, or pin it: commit_sha = "{str(source.commit)[:12]}"'
    return Problem.error("detached", "HEAD is detached: no branch is checked out", "HEAD", fix)


def unpushed(source: Source) -> Problem | None:
    where = str(source.branch)
    if source.ahead:
        count = "1 commit is" if source.ahead == 1 else f"{source.ahead} commits are"
        return Problem.error("unpushed", f"{count} not pushed to {source.upstream}", where, "git push")
    if source.commit and source.upstream is None and not source.detached:
        fix = f"git push -u origin {source.branch}"
        return Problem.error("no-upstream", f"branch {source.branch} has never been pushed", where, fix)
    return None


def behind(source: Source) -> Problem | None:
    if not source.behind:
        return None
    count = "1 commit" if source.behind == 1 else f"{source.behind} commits"
    problem = f"{source.upstream} has {count} that you do not have here"
    return Problem.error("behind", problem, str(source.branch), "git pull")


def not_synced(source: Source, sync: SyncState) -> Problem:
    synced = sync.synced(source.branch)
    have = f"it has {synced[:10]}" if synced else "it has none yet"
    fix = "osmosis sync --wait"
    if sync.status in ("Pending", "Syncing"):
        problem = f"the platform is still syncing ({have})"
    elif sync.status == "Failed":
        problem = f"{failed_sync(sync).what} ({have})"
        fix = "osmosis sync --status, then osmosis sync --wait"
    else:
        problem = f"the platform has not synced {str(source.commit)[:10]} ({have})"
    return Problem.error("not-synced", problem, str(source.branch), fix)


def failed_sync(sync: SyncState) -> Problem:
    problem = f"the last sync failed: {sync.error or 'no reason given'}"
    return Problem.error("sync-failed", problem, "sync", "osmosis sync --status")


def list_differences(source: Source, sync: SyncState) -> Iterator[Problem]:
    yield from uncommitted(source)
    yield from (problem for problem in (unpushed(source) if source.ahead else None, behind(source)) if problem)
    if not sync.connected:
        yield unknown_remote(source)
    elif source.commit and source.commit not in {*sync.branches.values(), sync.synced(source.branch)}:
        yield not_synced(source, sync)


def next_step(source: Source, sync: SyncState | None) -> tuple[str, str | None] | None:
    if source.operation or source.conflicts:
        return f"finish it: {finish_command(source)}", None
    if source.detached and sync and source.commit and not sync.knows(source.commit):
        return "switch to a branch", f"git switch {sync.default_branch or 'main'}"
    if source.dirty or source.untracked:
        push = " && git push" if source.remote_url else ""
        return "commit your changes", f"git add -A && git commit -m 'Describe the change'{push}"
    if sync is None:
        return None
    if not sync.connected:
        return "connect it to the platform", INIT
    if problem := unpushed(source):
        return "push", problem.fix
    if source.commit and not source.detached and sync.synced(source.branch) != source.commit:
        return "sync the platform", "osmosis sync --wait"
    return None


def finish_command(source: Source) -> str:
    if source.operation == "bisect":
        return "git bisect reset"
    end = "git commit"
    if source.operation:
        end = f"git {source.operation} --continue, or cancel it: git {source.operation} --abort"
    return f"resolve the conflicts, git add them, then: {end}" if source.conflicts else end


def list_some(paths: Sequence[str]) -> str:
    accepted = [path.rsplit("/", 1)[-1] for path in paths[:3]]
    names = ", ".join(accepted if len(set(accepted)) == len(accepted) else paths[:3])
    if len(paths) == 1:
        return f"{names} is"
    return f"{names} and {len(paths) - 3} more are" if len(paths) > 3 else f"{names} are"


@dataclass(frozen=True, slots=True)
class Facts:
    source: Source | None
    files: RolloutFiles | None = None
    pin: PinnedCommit | None = None
    unreadable: tuple[Problem, ...] = ()
    """Files of the working tree that Python refuses; not checked where other code runs."""


@dataclass(frozen=True, slots=True)
class _Case:
    experiment: Experiment
    source: Source
    facts: Facts
    sync: SyncState | None
    folder: str


def gather(root: Path, experiment: Experiment) -> Facts:
    source = read_source(root)
    if source is None:
        return Facts(None)
    files = read_rollout_files(root, experiment.rollout)
    if not experiment.commit_sha:
        wrong = () if experiment.branch else tuple(syntax_errors(root, experiment.rollout))
        return Facts(source, files, unreadable=wrong)
    return Facts(source, files, find_pinned_commit(root, experiment.commit_sha, experiment.rollout, experiment.file))


def check_submit(
    experiment: Experiment, facts: Facts, sync: SyncState | None, *, allow_dirty: bool = False, snapshot: bool = False
) -> list[Problem]:
    """Return every problem that keeps this working tree from the intended run, errors first. `sync` None: only git is
    judged. `allow_dirty` makes some of them warnings; with `snapshot` they do not apply."""
    if facts.source is None:
        return [*check_repository(None)]
    case = _Case(experiment, facts.source, facts, sync, f"rollouts/{experiment.rollout}")
    problems = [*_repository(case), *_contents(case), *facts.unreadable]
    if not any(p.severity == "error" for p in problems):
        if experiment.commit_sha:
            problems += _pinned(case)
        elif experiment.branch:
            problems += _branch(case)
        else:
            problems += [*_working_tree(case), *_against_platform(case)]
    if snapshot and not experiment.commit_sha and not experiment.branch:
        problems = [p for p in problems if p.code not in BY_SNAPSHOT]
    if allow_dirty:
        problems = [_overruled(p, case) for p in problems]
    return sorted(problems, key=lambda p: ("error", "warning", "info").index(p.severity))


def _overruled(problem: Problem, case: _Case) -> Problem:
    if problem.severity != "error" or problem.code not in OVERRULED:
        return problem
    commit = case.sync.synced(case.experiment.branch) if case.sync else None
    runs = f"the platform runs {commit[:10]} instead" if commit else "the platform runs what it has synced"
    return problem.model_copy(update={"severity": "warning", "what": f"{problem.what}; {runs}"})


def _repository(case: _Case) -> Iterator[Problem]:
    yield from check_repository(case.source)
    if case.source.identity and case.sync is not None and not case.sync.connected:
        yield unknown_remote(case.source)


def _contents(case: _Case) -> Iterator[Problem]:
    files = case.facts.files
    if files is None:
        return
    if files.tracked == 0 and not files.submodules and not (case.experiment.commit_sha or case.experiment.branch):
        fix = f"git add {case.folder} && git commit -m 'add {case.experiment.rollout}' && git push"
        yield Problem.error("not-in-git", f"git has no file under {case.folder}/ (new, or ignored)", case.folder, fix)
    for path in files.submodules:
        problem = "a submodule under the rollout; the platform does not fetch submodules"
        fix = f"copy the code in, or depend on it in {case.folder}/pyproject.toml"
        yield Problem.error("submodule", problem, path, fix)
    if files.lfs:
        stored = list_some(files.lfs)
        problem = f"{stored} stored with Git LFS; the run would get the pointer, not the content"
        fix = "upload data as a dataset, or: git lfs untrack, then commit the file itself"
        yield Problem.warning("lfs", problem, case.folder, fix)
    for fact in files.large:
        problem = f"the file has {fact.size / 1_000_000:.0f} MB and is checked out for every run"
        fix = f"git rm --cached {fact.path}, and upload it as a dataset or fetch it in the rollout"
        yield Problem.warning("large-file", problem, fact.path, fix)


def _pinned(case: _Case) -> Iterator[Problem]:
    sha, pin = case.experiment.commit_sha or "", case.facts.pin
    where = "experiment.commit_sha"
    if pin is None:
        return
    if pin.ambiguous:
        yield Problem.error("pin-ambiguous", f"several commits start with {sha}", where, "use more digits")
    elif pin.found is None:
        if case.sync is None or not case.sync.knows(sha):
            problem = f"commit {sha} is neither here nor synced by the platform"
            yield Problem.error("pin-unknown", problem, where, "git fetch origin, or correct commit_sha")
    else:
        if pin.has_entrypoint is False:
            file = f"{case.folder}/{case.experiment.file}"
            problem = f"commit {sha} has no {file}"
            yield Problem.error("pin-without-rollout", problem, where, f"git log -- {file}")
        if pin.on_remote is False and not (case.sync and case.sync.knows(pin.found)):
            problem = f"commit {sha} exists only on this machine"
            yield Problem.error("pin-unpushed", problem, where, "push a branch that contains it: git push")
    if case.source.dirty or case.source.untracked or pin.found != case.source.commit:
        problem = f"the run uses commit {sha}, not this working tree"
        yield Problem.info("pinned", problem, where, "remove commit_sha to run HEAD")


def _branch(case: _Case) -> Iterator[Problem]:
    branch = case.experiment.branch or ""
    if case.sync is None:
        return
    commit = case.sync.synced(branch)
    where = "experiment.branch"
    if commit is None:
        synced = ", ".join(sorted(case.sync.branches)) or case.sync.default_branch or "none"
        problem = f"the platform has not synced a branch {branch} (it has: {synced})"
        yield Problem.error("branch-not-synced", problem, where, f"git push origin {branch}")
    elif case.source.branch == branch and commit != case.source.commit:
        problem = f"the platform has {commit[:10]} of {branch}, HEAD is {str(case.source.commit)[:10]}"
        yield Problem.error("not-synced", problem, where, f"git push origin {branch}")
    if case.source.branch == branch:
        yield from _uncommitted(case)


def _working_tree(case: _Case) -> Iterator[Problem]:
    source, default = case.source, _default_branch(case)
    if source.operation and source.detached:
        yield unfinished_operation(source).model_copy(update={"code": "detached"})
    elif source.detached and not _is_synced(case):
        yield detached(source, default)
    yield from _uncommitted(case)
    if source.detached:
        return
    if default and source.branch != default and not _is_synced(case):
        problem = f"you are on {source.branch}, the platform runs {default}"
        fix = f'set branch = "{source.branch}" in [experiment] and push it, or: git switch {default}'
        yield Problem.error("branch-differs", problem, "HEAD", fix)
        return
    problems = unpushed(source)
    if problems and (source.ahead or not _is_synced(case)):
        yield problems
    if problems := behind(source):
        yield as_warning(problems).model_copy(update={"what": f"{problems.what}; the platform runs them"})


def _uncommitted(case: _Case) -> Iterator[Problem]:
    name = case.experiment.rollout
    of_rollout = {
        "uncommitted": ("dirty-rollout", f"git commit -am 'change {name}' && git push, or submit with --snapshot"),
        "untracked": (
            "untracked-rollout",
            f"git add {case.folder} && git commit -m 'add to {name}' && git push, or list them in .gitignore",
        ),
    }
    for problem in uncommitted(case.source, case.folder):
        code, fix = of_rollout.get(problem.code, (problem.code, problem.fix))
        yield problem.model_copy(update={"code": code, "fix": fix})


def _against_platform(case: _Case) -> Iterator[Problem]:
    sync, source = case.sync, case.source
    if sync is None or source.detached or source.ahead or source.branch != _default_branch(case):
        return
    synced = sync.synced(source.branch)
    if synced == source.commit or (source.behind and synced):
        if synced and sync.rollouts and case.experiment.rollout not in sync.rollouts and not source.behind:
            problems = ", ".join(sync.rollouts)
            problem = f"the platform found no rollout {case.experiment.rollout} in {synced[:10]} (it found: {problems})"
            fix = f"git log -1 -- {case.folder}, then push it"
            yield Problem.error("no-such-rollout-synced", problem, case.folder, fix)
        return
    if source.upstream is None:
        return  # said by _working_tree: never pushed
    stale = not_synced(source, sync)
    also = "" if sync.status == "Failed" else ", or submit with --wait-sync"
    yield stale.model_copy(update={"fix": stale.fix + also})


def _default_branch(case: _Case) -> str | None:
    return (case.sync.default_branch if case.sync else None) or case.source.default_branch


def _is_synced(case: _Case) -> bool:
    return bool(case.sync and case.source.commit and case.sync.synced(None) == case.source.commit)


SKIPPED = {".venv", "__pycache__", ".git", "node_modules"}
MOST_FILES = 300
MOST_BYTES = 1_000_000


def syntax_errors(root: Path, rollout: str) -> Iterator[Problem]:
    folder = root / "rollouts" / rollout
    files = sorted(path for path in folder.rglob("*.py") if not SKIPPED & set(path.relative_to(folder).parts))
    for path in files[:MOST_FILES]:
        if (problem := _refused(path, path.relative_to(root).as_posix())) is not None:
            yield problem


def _refused(path: Path, shown: str) -> Problem | None:
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        source = path.read_bytes()
    except OSError:
        return None  # a dangling link: git says more about it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the person's own code, which is run elsewhere
            ast.parse(source, filename=shown)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        message = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        where = f"{shown}:{line}" if line else shown
        return Problem.error("syntax", f"Python cannot read it: {message}", where, f"correct {where}")
    return None
