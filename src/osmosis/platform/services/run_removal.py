"""Deleting a run: its rows in the transaction that notes it, its files once that is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from sqlalchemy.orm import Session

from osmosis.platform import Platform, tables
from osmosis.viewer.index.file import remove as remove_index

from . import dataset_ingest, deployments, models, run_lifecycle


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """The files of a run that is gone."""

    run_id: str
    dataset_path: str


def remove(session: Session, run: tables.Run) -> RemovedFiles:
    """Conflict while the run goes on, or while something of it is deployed."""
    deployments.refuse_deployed(session, run)
    left = RemovedFiles(run.id, run.dataset_path)
    run_lifecycle.delete(session, run)
    return left


def clean(platform: Platform, left: RemovedFiles) -> None:
    platform.objects.delete(f"runs/{left.run_id}/")
    remove_index(platform.settings.viewer_index(left.run_id))
    models.delete_files(platform, f"models/runs/{left.run_id}/")
    if left.dataset_path:  # of a dataset that is gone, or has a newer file, this run was the last that needed it
        dataset_ingest.clean(platform, PurePosixPath(left.dataset_path).parent.name)
