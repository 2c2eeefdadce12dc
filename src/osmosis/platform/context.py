"""The parts one platform process is made of, built once and passed to routes, worker and git host.

Holds no rule and opens nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from .db import Database
from .security.vault import Vault
from .settings import PlatformSettings


@dataclass(frozen=True, slots=True)
class Platform:
    """`request.app.state.platform`."""

    settings: PlatformSettings
    db: Database
    vault: Vault

    @classmethod
    def open(cls, settings: PlatformSettings) -> Platform:
        """Folders, master key, database at this version."""
        for folder in (settings.data_dir, settings.objects_dir, settings.repositories_dir, settings.runs_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
        db = Database(settings.database)
        db.migrate()
        return cls(settings, db, vault)
