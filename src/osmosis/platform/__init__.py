"""The self-hosted platform. It never imports user code, the engine or a model library."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.base.locks import locked
from osmosis.errors import PlatformError
from osmosis.platform.auth.rate_limits import RateLimits
from osmosis.platform.backup.archive import BackupManifest, add_rows, build_header, finish, open_snapshot, open_writer
from osmosis.platform.db import HEAD, Database
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.store import Objects
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Vault
from osmosis.records.base import utc_now

log = logging.getLogger(__name__)
BACKUPS = "backups"


@dataclass(frozen=True, slots=True)
class Platform:
    settings: PlatformSettings
    db: Database
    vault: Vault
    objects: Objects
    rates: RateLimits = field(default_factory=RateLimits)

    @classmethod
    def open(cls, settings: PlatformSettings) -> "Platform":
        for folder in (settings.data_dir, settings.objects_dir, settings.repositories_dir, settings.runs_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
        db = Database(settings.database, settings.database_limit_s)
        upgrade(settings, db, vault)
        return cls(settings, db, vault, open_objects(settings))


def upgrade(settings: PlatformSettings, db: Database, vault: Vault) -> Path | None:
    """Migrate the database to this version; return the backup that was made before, if any."""
    if db.revision() == HEAD:
        return None
    with locked(settings.data_dir / ".upgrade.lock"):
        revision = db.revision()
        backup = None
        if revision not in (None, HEAD) and settings.backup_before_upgrade:
            backup = _keep(settings, db, vault, str(revision))
        db.migrate()
    return backup


def _keep(settings: PlatformSettings, db: Database, vault: Vault, revision: str) -> Path:
    target = settings.data_dir / BACKUPS / f"before-{HEAD}-of-{revision}-{utc_now():%Y%m%d-%H%M%S}.tar.gz"
    try:
        target.parent.mkdir(exist_ok=True, mode=0o700)
        with open_writer(target, build_header(db.engine, vault.key_id, scope="database")) as archive:
            with open_snapshot(db.engine) as connection:
                rows = add_rows(connection, archive)
            finish(archive, BackupManifest(files=dict(archive.sums), rows=rows))
    except OSError as error:
        hint = f"make room in {settings.data_dir}, or start with OSMOSIS_BACKUP_BEFORE_UPGRADE=false"
        message = f"the database has to be upgraded, and its backup cannot be written: {error.strerror or error}"
        raise PlatformError(message, hint=hint) from error
    log.info("the database is upgraded from revision %s to %s; its backup: %s", revision, HEAD, target)
    return target
