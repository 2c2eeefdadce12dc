"""One submit on its way: what was asked for, what was found out since, and the request that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis.records.config import EvalConfig, TrainingConfig
from osmosis.records.run_kind import NOUNS, RunKind
from osmosis.records.source import SnapshotNote
from osmosis.workspace.gitwrite import Snapshot, push_snapshot
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import Facts

from .context import AppContext
from .submit_overrides import Overrides
from .submit_questions import SubmitQuestions

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


@dataclass(frozen=True)
class SubmitOptions:
    """What the flags of a submit say."""

    kind: RunKind
    config: str | None
    """Path or name; None: the only one there is."""
    yes: bool = False
    wait: bool = False
    wait_sync: bool = False
    allow_dirty: bool = False
    snapshot: bool = False
    secrets_file: str | None = None
    fail_under: float | None = None
    overrides: Overrides = field(default_factory=Overrides)
    force: bool = False
    """Submit a training run although nothing could be learned."""
    probe: int | None = None
    """Evaluate the base model on so many rows first."""

    @property
    def noun(self) -> str:
        return NOUNS[self.kind]


@dataclass
class SubmitCase:
    """One submit on its way."""

    ctx: AppContext
    options: SubmitOptions
    client: PlatformClient
    workspace: Workspace
    path: Path
    config: EvalConfig | TrainingConfig
    facts: Facts
    asked: SubmitQuestions
    snapshot: Snapshot | None = None
    provided: dict[str, str] = field(default_factory=dict)
    """Secret values for this run only."""
    dataset_rows: int | None = None
    """How many the platform has; None while nobody has counted them."""


def push(case: SubmitCase) -> None:
    if case.snapshot is not None:
        push_snapshot(case.workspace.root, case.snapshot)


def request_body(case: SubmitCase) -> dict[str, object]:
    """The request of contract B; with a snapshot, the commit that holds it."""
    taken, beside = case.snapshot, case.options.overrides.beside()
    if taken is None:
        return {**case.config.to_request(case.provided), **beside}
    experiment = case.config.experiment.model_copy(update={"commit_sha": taken.commit})
    note = SnapshotNote(parent=taken.parent, files=list(taken.files), diff=taken.diff)
    request = case.config.model_copy(update={"experiment": experiment}).to_request(case.provided)
    return {**request, "snapshot": note.to_dict(), **beside}
