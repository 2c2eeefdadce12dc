"""Before a database is brought to a newer version, its rows are kept: an upgrade can be undone.

A migration changes rows and no files, so the backup has rows only. `osmosis platform restore` puts them back.
"""

from __future__ import annotations

import logging
from pathlib import Path

from osmosis.base.locks import locked
from osmosis.errors import PlatformError
from osmosis.platform.db import HEAD, Database
from osmosis.platform.security.vault import Vault
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now

from . import table_dump
from .archive_file import BackupManifest, add_rows, finish, header_of, writing

log = logging.getLogger(__name__)

FOLDER = "backups"


def upgrade(settings: PlatformSettings, db: Database, vault: Vault) -> Path | None:
    """Bring the database to this version; the backup that was made before, None when nothing had to be done.

    PlatformError when the backup cannot be written: the database is as it was then.
    """
    if db.revision() == HEAD:
        return None
    with locked(settings.data_dir / ".upgrade.lock"):
        found = db.revision()
        kept = None
        if found not in (None, HEAD) and settings.backup_before_upgrade:
            kept = _keep(settings, db, vault, str(found))
        db.migrate()
    return kept


def _keep(settings: PlatformSettings, db: Database, vault: Vault, revision: str) -> Path:
    target = settings.data_dir / FOLDER / f"before-{HEAD}-of-{revision}-{utc_now():%Y%m%d-%H%M%S}.tar.gz"
    try:
        target.parent.mkdir(exist_ok=True, mode=0o700)
        with writing(target, header_of(db.engine, vault.key_id, scope="database")) as archive:
            with table_dump.view(db.engine) as connection:
                rows = add_rows(connection, archive)
            finish(archive, BackupManifest(files=dict(archive.sums), rows=rows))
    except OSError as error:
        raise PlatformError(
            f"the database has to be upgraded, and its backup cannot be written: {error.strerror or error}",
            hint=f"make room in {settings.data_dir}, or start with OSMOSIS_BACKUP_BEFORE_UPGRADE=false",
        ) from error
    log.info("the database is upgraded from revision %s to %s; its backup: %s", revision, HEAD, target)
    return target
