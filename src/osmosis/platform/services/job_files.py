"""What jobs on other machines fetch: the commit as a git bundle, the selected rows as a file.

Each is made once for a run, when it is first asked for, and goes when the run is over. Neither is made in this process:
git makes the bundle, a reader in a sandbox writes the rows.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session, undefer

from osmosis.base.files import beside
from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.datasets.row_file import cut_row_file
from osmosis.errors import NotFound, PlatformError
from osmosis.platform import Platform, tables
from osmosis.platform.readers import read_with
from osmosis.platform.settings import PlatformSettings
from osmosis.records.shard import Shard

from . import rollouts

BUNDLE_S = 600.0
READ_S = 60.0
BYTES_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class FilesWanted:
    """What the files of a run are made from; loaded first, because making them takes longer than a session may."""

    run_id: str
    repository: Path
    commit_sha: str
    dataset: str
    """Its key in the object store."""
    rows: list[int]
    stored: list[str]
    """Row keys of what is stored already."""


def wanted_of(session: Session, settings: PlatformSettings, run_id: str) -> FilesWanted:
    """NotFound when the repository or the dataset's file is gone."""
    run = session.get_one(tables.Run, run_id, options=[undefer(tables.Run.rows)])
    repository = session.get(tables.Repository, run.repository_id) if run.repository_id else None
    if repository is None:
        raise NotFound("the repository of this run is no longer connected", hint="submit a new run")
    keys = sorted({row_key for _, row_key, _ in rollouts.keys(session, run.id)})
    return FilesWanted(run.id, settings.located(repository.path), run.commit_sha, run.dataset_path, run.rows, keys)


def bundle(settings: PlatformSettings, wanted: FilesWanted) -> Path:
    """The commit alone, without its history: whoever unpacks it says that it begins there."""
    made = folder_of(settings, wanted.run_id) / "source.bundle"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=made.parent) as place:
        folder = Path(place)
        git = Git(folder, sealed_environ(settings.environ), timeout_s=BUNDLE_S)
        try:
            git.text("init", "--quiet", "--bare", "--template=", ".")
            (folder / "objects" / "info").mkdir(parents=True, exist_ok=True)
            (folder / "objects" / "info" / "alternates").write_text(f"{(wanted.repository / 'objects').resolve()}\n")
            (folder / "shallow").write_text(f"{wanted.commit_sha}\n")
            git.text("update-ref", "refs/heads/run", wanted.commit_sha)
            git.text("bundle", "create", "--quiet", "run.bundle", "refs/heads/run")
        except GitError as problem:
            raise PlatformError(f"the commit of this run cannot be sent: {problem.message}") from problem
        (folder / "run.bundle").replace(made)
    return made


def row_file(platform: Platform, wanted: FilesWanted, shard: Shard) -> Path:
    """The rows of a job with the keys that the whole selection gives them (`datasets.row_file`)."""
    whole = _all_rows(platform, wanted)
    if shard.count == 1:
        return whole
    part = whole.with_name(f"rows-{shard.number}-of-{shard.count}.jsonl")
    if not part.exists():
        cut_row_file(whole, part, shard.of(wanted.rows))
    return part


def _all_rows(platform: Platform, wanted: FilesWanted) -> Path:
    made = folder_of(platform.settings, wanted.run_id) / "rows.jsonl"
    if made.exists():
        return made
    try:
        dataset = platform.objects.fetch(wanted.dataset)
    except NotFound:
        raise NotFound("the dataset of this run was deleted", hint="submit a new run") from None
    made.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = beside(made)
    draft.mkdir()
    try:
        given = {"path": str(dataset), "target": str(draft / "rows"), "rows": wanted.rows}
        read_with(
            ["-m", "osmosis.datasets.row_file"],
            {**given, "stored": wanted.stored},
            what="the dataset",
            files=[dataset],
            write=[draft],
            seconds=READ_S + dataset.stat().st_size / BYTES_PER_S,
        )
        (draft / "rows").replace(made)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def folder_of(settings: PlatformSettings, run_id: str) -> Path:
    return settings.sent_dir / run_id


def forget(settings: PlatformSettings, run_id: str) -> None:
    """Nobody fetches them any more."""
    shutil.rmtree(folder_of(settings, run_id), ignore_errors=True)
