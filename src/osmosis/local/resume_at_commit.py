import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.git import Git, GitError
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import signals_handled
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, ValidationError
from osmosis.records.run.history import Look

_BEFORE = "before_extension"  # Key in `run.json` with its former content, while a run is extended


def check_extendable(journal: Journal) -> None:
    local = journal.run().get("local")
    if not isinstance(local, dict) or local.get("objects"):
        raise ValidationError(
            f"run {journal.folder.name} cannot be extended from here: it was not started by a command on this machine",
            hint="compare it without --until-decided",
        )


def dataset_of(journal: Journal) -> Path:
    base = (journal.run().get("local") or {}).get("base_dir") or ""
    return Path(base, Path(journal.plan().dataset).expanduser()).absolute()


def extend(journal: Journal, look: Look, max_cost_usd: float | None, environ: Mapping[str, str]) -> None:
    try:
        _resume(journal, look, max_cost_usd, environ, None)
    except Conflict as changed:
        if "resume" not in changed.details:
            raise  # another process writes it
        name = journal.folder.name
        try:
            commit = commit_of(journal)
        except ValidationError as unknown:
            message = f"{changed.message}. More attempts have to be made by the same code, and {unknown.message}"
            raise Conflict(message, hint="restore the code, or make both runs anew from committed code") from unknown
        try:
            with folder_at(Path(journal.run()["local"]["base_dir"]), commit) as base:
                _resume(journal, look, max_cost_usd, environ, base)
        except (Conflict, GitError) as problem:
            message = f"run {name} cannot be extended with the code of its commit {commit[:10]}: {problem.message}"
            raise Conflict(message, hint="make both runs anew from committed code") from problem


def _resume(
    journal: Journal, look: Look, max_cost_usd: float | None, environ: Mapping[str, str], base: Path | None
) -> None:
    command = [sys.executable, "-m", "osmosis", "eval", "resume", str(journal.folder), "--json"]
    if max_cost_usd is not None:
        command += ["--max-cost", f"{max_cost_usd:.6f}"]
    cwd = Path(base or journal.run()["local"]["base_dir"])
    with _replanned(journal, look, base), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        env = dict(environ)
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=out, stderr=err, start_new_session=True)
        if _wait(process) == 130:
            raise KeyboardInterrupt
        out.seek(0)
        err.seek(0)
        output, errors = out.read(), err.read()
    lines = [*output.splitlines(), *errors.splitlines()]
    documents = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    for document in documents:
        if error := document.get("error"):
            kind = Conflict if error["code"] == Conflict.code else ValidationError
            raise kind(error["message"], **error["details"])
    if not documents:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        message = f"run {journal.folder.name} could not be resumed: {last}"
        raise ValidationError(message, hint=f"osmosis eval resume {journal.folder.name}")


@contextmanager
def _replanned(journal: Journal, look: Look, base: Path | None) -> Iterator[None]:
    """Change `run.json` for the look inside the block; then restore its budget and folder."""
    restore(journal)
    before, plan = journal.run(), journal.plan()
    update: JsonObject = {"attempts": look.attempts}
    if look.limit is not None:
        update["selection"] = plan.selection.model_copy(update={"limit": look.limit})
    if base is not None:
        update["dataset"] = str(dataset_of(journal))
    new_plan = plan.model_copy(update=update).model_dump(mode="json")
    local = {**before["local"], **({"base_dir": str(base)} if base is not None else {})}
    with _locked(journal):
        moved = {"plan": {name: before["plan"][name] for name in ("dataset", "budget")}, "local": before["local"]}
        write_json(journal.run_path, {**before, "plan": new_plan, "local": local, _BEFORE: moved})
    try:
        yield
    finally:
        restore(journal)
        if len(journal.run()["sessions"]) == len(before["sessions"]):
            write_json(journal.run_path, before)  # it did not start


def restore(journal: Journal) -> None:
    with _locked(journal):
        now = journal.run()
        moved = now.pop(_BEFORE, None)
        if moved is not None:
            write_json(journal.run_path, {**now, "plan": {**now["plan"], **moved["plan"]}, "local": moved["local"]})


@contextmanager
def _locked(journal: Journal) -> Iterator[None]:
    other = Journal(journal.folder)
    other.lock()
    try:
        yield
    finally:
        other.close()


def _wait(process: subprocess.Popen[bytes]) -> int:
    def pass_on(number: int, frame: object) -> None:
        if process.poll() is None:
            process.send_signal(number)

    with signals_handled(pass_on, signal.SIGINT, signal.SIGTERM):
        return process.wait()


def commit_of(journal: Journal) -> str:
    git = journal.plan().provenance.get("git") or {}
    name = journal.folder.name
    if not git.get("commit"):
        message = f"run {name} was made outside a git repository"
        raise ValidationError(message, hint="make runs of committed code, then try again")
    if git.get("dirty"):
        message = f"run {name} was made with uncommitted changes: its commit does not say what ran"
        raise ValidationError(message, hint="commit, run it again, then try again")
    return str(git["commit"])


@contextmanager
def folder_at(root: Path, commit: str) -> Iterator[Path]:
    git = Git(root)
    top = Path(git.text("rev-parse", "--show-toplevel").strip())
    tree = top / ".osmosis" / "bisect" / commit[:12]
    shutil.rmtree(tree, ignore_errors=True)
    git.text("worktree", "prune")
    git.text("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    try:
        yield tree / root.resolve().relative_to(top.resolve())
    finally:
        git.text("worktree", "remove", "--force", str(tree))
