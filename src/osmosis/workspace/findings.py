"""What can be said of a workspace folder, its repository and the platform's copy: each finding's words and fix, once.

`preflight` decides which of them stop a submit, `doctor`, `sync` and `status` tell them. Nothing here reads git or
asks the platform; every finding is an error until its caller says that it matters less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osmosis.records.problem import Problem
from osmosis.records.source import Source, SyncState

from .layout import FILES, FOLDERS, Workspace

INIT = "osmosis init --here --platform"


def softer(problem: Problem) -> Problem:
    """The same as a warning."""
    return problem.model_copy(update={"severity": "warning"})


def of_folder(workspace: Workspace) -> list[Problem]:
    """What is missing or misplaced in the folder itself."""
    problems = []
    for name in FOLDERS:
        path = workspace.root / name
        if path.is_dir():
            continue
        what = f"{name}/ is a file, not a folder" if path.exists() else f"{name}/ is missing"
        problems.append(Problem(code="missing-folder", what=what, where=name, fix="osmosis doctor --fix"))
    for name in FILES:
        if not (workspace.root / name).is_file():
            problems.append(
                Problem(
                    code="missing-file",
                    what=f"{name} is missing",
                    where=name,
                    fix="osmosis doctor --fix",
                    severity="warning",
                )
            )
    for folder in workspace.rollouts():
        where = f"rollouts/{folder.name}"
        if folder.entrypoint is None:
            fix = f"add {where}/main.py, or set [experiment].entrypoint in its configs"
            what = "the rollout has no main.py"
            problems.append(Problem(code="no-entrypoint", what=what, where=where, fix=fix, severity="warning"))
        if folder.pyproject is None:
            what = "the rollout has no pyproject.toml, so its environment contains only the SDK"
            fix = f"add {where}/pyproject.toml with its dependencies"
            problems.append(Problem(code="no-pyproject", what=what, where=where, fix=fix, severity="warning"))
    return problems


def of_repository(source: Source | None) -> Iterator[Problem]:
    """Can anything run from here: a repository with a commit, at its top, with a remote that names it."""
    if source is None:
        fix = "osmosis init --here, or: git init && git add -A && git commit -m 'First commit'"
        yield Problem(code="no-repository", what="this workspace is not in a git repository", fix=fix)
        return
    if source.commit is None:
        fix = "git add -A && git commit -m 'First commit' && git push -u origin HEAD"
        yield Problem(code="no-commit", what="the repository has no commit yet", fix=fix)
    if source.prefix:
        yield Problem(
            code="nested-workspace",
            what=f"the workspace is the folder {source.prefix.rstrip('/')} of a larger repository",
            where=source.prefix,
            fix="give the workspace its own repository, with rollouts/ and configs/ at its top",
        )
    if source.remote_url is None:
        fix = f"{INIT}, or: git remote add origin <url>"
        yield Problem(code="no-remote", what="the repository has no remote named origin", fix=fix)
    elif source.identity is None:
        what = f"the remote {source.remote_url} does not end in owner/repository"
        yield Problem(code="bad-remote", what=what, where="origin", fix="git remote set-url origin <url>")


def unknown_remote(source: Source | None) -> Problem:
    """The platform is not connected to this repository."""
    which = f"the repository {source.identity}" if source and source.identity else "this repository"
    return Problem(code="unknown-remote", what=f"the platform does not know {which}", where="origin", fix=INIT)


def unfinished(source: Source) -> Problem:
    """Git is in the middle of a rebase, merge or the like."""
    what = f"git is in the middle of a {source.operation}"
    return Problem(code="unfinished", what=what, where="HEAD", fix=finish(source))


def uncommitted(source: Source, folder: str = "") -> Iterator[Problem]:
    """Files (of a folder) that are in conflict, changed, or new."""
    place = folder or "git"
    conflicts, dirty, new = (
        [path for path in paths if not folder or path.startswith(f"{folder}/")]
        for paths in (source.conflicts, source.dirty, source.untracked)
    )
    if conflicts:
        what = f"{some(conflicts)} in conflict after a {source.operation or 'merge'}"
        yield Problem(code="conflict", what=what, where=place, fix=finish(source))
    if changed := [path for path in dirty if path not in conflicts]:
        fix = "git commit -am 'Describe the change' && git push"
        yield Problem(code="uncommitted", what=f"{some(changed)} changed but not committed", where=place, fix=fix)
    if new:
        fix = f"git add {folder or '-A'} && git commit -m 'Add files' && git push, or list them in .gitignore"
        yield Problem(code="untracked", what=f"{some(new)} not in git", where=place, fix=fix)


def detached(source: Source, default: str | None) -> Problem:
    """No branch is checked out."""
    fix = f'git switch {default or "main"}, or pin it: commit_sha = "{str(source.commit)[:12]}"'
    return Problem(code="detached", what="HEAD is detached: no branch is checked out", where="HEAD", fix=fix)


def unpushed(source: Source) -> Problem | None:
    """Commits of the branch that its remote does not have, or None."""
    where = str(source.branch)
    if source.ahead:
        count = "1 commit is" if source.ahead == 1 else f"{source.ahead} commits are"
        return Problem(code="unpushed", what=f"{count} not pushed to {source.upstream}", where=where, fix="git push")
    if source.commit and source.upstream is None and not source.detached:
        fix = f"git push -u origin {source.branch}"
        return Problem(code="no-upstream", what=f"branch {source.branch} has never been pushed", where=where, fix=fix)
    return None


def behind(source: Source) -> Problem | None:
    """Commits of the remote that are not here, or None."""
    if not source.behind:
        return None
    count = "1 commit" if source.behind == 1 else f"{source.behind} commits"
    what = f"{source.upstream} has {count} that you do not have here"
    return Problem(code="behind", what=what, where=str(source.branch), fix="git pull")


def not_synced(source: Source, sync: SyncState) -> Problem:
    """The platform does not have HEAD: what it has, and whether that will change by itself."""
    synced = sync.synced(source.branch)
    have = f"it has {synced[:10]}" if synced else "it has none yet"
    fix = "osmosis sync --wait"
    if sync.status in ("Pending", "Syncing"):
        what = f"the platform is still syncing ({have})"
    elif sync.status == "Failed":
        what = f"{failed_sync(sync).what} ({have})"
        fix = "osmosis sync status, then osmosis sync --wait"
    else:
        what = f"the platform has not synced {str(source.commit)[:10]} ({have})"
    return Problem(code="not-synced", what=what, where=str(source.branch), fix=fix)


def failed_sync(sync: SyncState) -> Problem:
    """The platform could not read the repository."""
    what = f"the last sync failed: {sync.error or 'no reason given'}"
    return Problem(code="sync-failed", what=what, where="sync", fix="osmosis sync status")


def differences(source: Source, sync: SyncState) -> Iterator[Problem]:
    """Everything here that the platform does not have, and the other way round."""
    yield from uncommitted(source)
    yield from (found for found in (unpushed(source) if source.ahead else None, behind(source)) if found)
    if not sync.connected:
        yield unknown_remote(source)
    elif source.commit and source.commit not in {*sync.branches.values(), sync.synced(source.branch)}:
        yield not_synced(source, sync)


def next_step(source: Source, sync: SyncState | None) -> tuple[str, str | None] | None:
    """What brings this working tree to the platform next, and its command; None when there is nothing (more) to do.

    `sync` None: the platform was not asked, so only what comes before it is said.
    """
    if source.operation or source.conflicts:
        return f"finish it: {finish(source)}", None
    if source.detached and sync and source.commit and not sync.knows(source.commit):
        return "switch to a branch", f"git switch {sync.default_branch or 'main'}"
    if source.dirty or source.untracked:
        push = " && git push" if source.remote_url else ""
        return "commit your changes", f"git add -A && git commit -m 'Describe the change'{push}"
    if sync is None:
        return None
    if not sync.connected:
        return "connect it to the platform", INIT
    if found := unpushed(source):
        return "push", found.fix
    if source.commit and not source.detached and sync.synced(source.branch) != source.commit:
        return "sync the platform", "osmosis sync --wait"
    return None


def finish(source: Source) -> str:
    """How to end what git is in the middle of."""
    if source.operation == "bisect":
        return "git bisect reset"
    end = "git commit"
    if source.operation:
        end = f"git {source.operation} --continue, or cancel it: git {source.operation} --abort"
    return f"resolve the conflicts, git add them, then: {end}" if source.conflicts else end


def some(paths: Sequence[str]) -> str:
    """Up to three file names and how many more, with the verb: `a.py, b.py are`; paths where two names are the same."""
    shown = [path.rsplit("/", 1)[-1] for path in paths[:3]]
    names = ", ".join(shown if len(set(shown)) == len(shown) else paths[:3])
    if len(paths) == 1:
        return f"{names} is"
    return f"{names} and {len(paths) - 3} more are" if len(paths) > 3 else f"{names} are"
