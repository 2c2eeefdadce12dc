"""The self-hostable platform: HTTP API, services, tables, worker, executors, git host and pages.

Where a line belongs:

- `api`: routes of the JSON API, one file a noun (`secret_routes`). They parse, call and answer.
- `services`: what the platform decides, one file a noun (`secrets`): functions over a session, without HTTP.
- `tables`: what it stores. Rows refer to each other, so all of them are there, also those of a room.
- A room holds all the rest of one subject: `gitsync` (repositories and their commits), `run_upload` (a local run on
  its way in), `githost` (git over HTTP), `objects` (stored bytes), `web` (pages), `security` (tokens, sealing),
  `archive` (a platform as one file), `upkeep` (backup, retention, doctor, metrics, logs).
- Here, at the top: the process itself, its settings, database, worker, and what passes questions on to
  deployed models.

It never imports user code, the engine or a model library: a crash of user code is the exit code of a job, never of
the platform.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .archive.upgrade import upgrade
from .db import Database
from .objects import open_objects
from .objects.store import Objects
from .security.rate_limits import RateLimits
from .security.vault import Vault
from .settings import PlatformSettings


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts one platform process is made of, built once: `request.app.state.platform`."""

    settings: PlatformSettings
    db: Database
    vault: Vault
    objects: Objects
    rates: RateLimits = field(default_factory=RateLimits)

    @classmethod
    def open(cls, settings: PlatformSettings) -> Platform:
        """Folders, master key, database at this version."""
        for folder in (settings.data_dir, settings.objects_dir, settings.repositories_dir, settings.runs_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
        db = Database(settings.database)
        upgrade(settings, db, vault)
        return cls(settings, db, vault, open_objects(settings))
