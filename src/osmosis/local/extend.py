"""A run of this machine, resumed with more rows or attempts than it was made for, by the code that made it.

With the code that is there as long as it is the same, else in a worktree of the run's commit; refuses where neither is.
Everything about running is `osmosis eval resume`, in a process of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.git import GitError
from osmosis.base.json_types import JsonObject
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, ValidationError
from osmosis.records.decision import Look

from .at_commit import commit_of, folder_at

_BEFORE = "before_extension"
"""In `run.json`, while a run is extended: what it says otherwise."""


def check_extendable(journal: Journal) -> None:
    """Raises ValidationError for a run that no command of this machine can go on with."""
    local = journal.run().get("local")
    if not isinstance(local, dict) or local.get("objects"):
        raise ValidationError(
            f"run {journal.folder.name} cannot be extended from here: it was not started by a command on this machine",
            hint="compare it without --until-decided",
        )


def dataset_of(journal: Journal) -> Path:
    return Path(journal.run()["local"]["base_dir"], journal.plan().dataset).expanduser().absolute()


def extend(journal: Journal, look: Look, max_cost_usd: float | None, environ: Mapping[str, str]) -> None:
    """Resumes the run with more rows and attempts: with the code that is there, else with that of its commit."""
    try:
        _resume(journal, look, max_cost_usd, environ, None)
    except Conflict as changed:
        if "resume" not in changed.details:
            raise  # another process writes it
        name = journal.folder.name
        try:
            commit = commit_of(journal)
        except ValidationError as unknown:
            raise Conflict(
                f"{changed.message}. More attempts have to be made by the same code, and {unknown.message}",
                hint="restore the code, or make both runs anew from committed code",
            ) from unknown
        try:
            with folder_at(Path(journal.run()["local"]["base_dir"]), commit) as base:
                _resume(journal, look, max_cost_usd, environ, base)
        except (Conflict, GitError) as problem:
            raise Conflict(
                f"run {name} cannot be extended with the code of its commit {commit[:10]}: {problem.message}",
                hint="make both runs anew from committed code",
            ) from problem


def _resume(
    journal: Journal, look: Look, max_cost_usd: float | None, environ: Mapping[str, str], base: Path | None
) -> None:
    """In a process of its own: the code of the two runs may be two versions of the same modules."""
    command = [sys.executable, "-m", "osmosis", "eval", "resume", str(journal.folder), "--json"]
    if max_cost_usd is not None:
        command += ["--max-cost", f"{max_cost_usd:.6f}"]
    cwd = Path(base or journal.run()["local"]["base_dir"])
    with _replanned(journal, look, base), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _wait(
            subprocess.Popen(command, cwd=cwd, env=dict(environ), stdout=out, stderr=err, start_new_session=True)
        )
        if code == 130:
            raise KeyboardInterrupt
        out.seek(0)
        err.seek(0)
        said, wrong = out.read(), err.read()
    _raise_error(said, wrong, journal.folder.name)


def _raise_error(said: bytes, wrong: bytes, name: str) -> None:
    """What the resumed run could not start for, as it said so."""
    lines = [*said.splitlines(), *wrong.splitlines()]
    documents = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    for document in documents:
        if error := document.get("error"):
            kind = Conflict if error["code"] == Conflict.code else ValidationError
            raise kind(error["message"], **error["details"])
    if not documents:
        last = (wrong.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise ValidationError(f"run {name} could not be resumed: {last}", hint=f"osmosis eval resume {name}")


@contextmanager
def _replanned(journal: Journal, look: Look, base: Path | None) -> Iterator[None]:
    """While the block lasts, `run.json` asks for what the look needs; then its budget and folder are as before.

    What has to come back is in the file itself, for whoever finds it after this process was killed.
    """
    restore(journal)
    before, plan = journal.run(), journal.plan()
    update: JsonObject = {"attempts": look.attempts}
    if look.limit is not None:
        update["selection"] = plan.selection.model_copy(update={"limit": look.limit})
    if base is not None:
        update["dataset"] = str(dataset_of(journal))
    asked = plan.model_copy(update=update).model_dump(mode="json")
    local = {**before["local"], **({"base_dir": str(base)} if base is not None else {})}
    with _locked(journal):
        kept = {name: before["plan"][name] for name in ("dataset", "budget")}
        moved = {"plan": kept, "local": before["local"]}
        write_json(journal.run_path, {**before, "plan": asked, "local": local, _BEFORE: moved})
    try:
        yield
    finally:
        restore(journal)
        if len(journal.run()["sessions"]) == len(before["sessions"]):
            write_json(journal.run_path, before)  # it did not start


def restore(journal: Journal) -> None:
    """Puts back what a process that was killed while it extended this run had changed in `run.json`."""
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
    """Until it ends. Ctrl-C here is Ctrl-C there, which lets what is in flight end; a second one cuts it off."""

    def pass_on(number: int, frame: object) -> None:
        if process.poll() is None:
            process.send_signal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, pass_on)
        except ValueError:
            pass  # not the main thread: whoever runs us there handles signals
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
