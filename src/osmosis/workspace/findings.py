"""Problems of a workspace folder, its repository and the platform's copy: each text and fix, once. `preflight` decides
which of them stop a submit."""

from collections.abc import Iterator, Sequence

from osmosis.records.config.validation import Problem
from osmosis.records.run.source import Source, SyncState
from osmosis.workspace.layout import FILES, FOLDERS, Workspace

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
    """Check that anything can run from here: a repository with a commit, at its top, with a usable remote."""
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
    """Return the next step towards the platform, and its command; None when there is none."""
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
