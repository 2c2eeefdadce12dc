"""Whether this process can serve: its database answers with the tables of this version, and its data folder has room.

Looks, and changes nothing: what is missing is told to the log, never to whoever asks.
"""

from __future__ import annotations

import shutil

import sqlalchemy as sa

from . import Platform
from .db import HEAD

LEAST_FREE_BYTES = 16 * 1024 * 1024
"""With less free space a request that stores something fails."""


def problem(platform: Platform) -> str:
    """Why requests cannot be served now; empty when they can."""
    try:
        with platform.db.read() as session:
            version = session.scalar(sa.text("SELECT version_num FROM alembic_version"))
    except sa.exc.SQLAlchemyError as error:
        return f"the database does not answer: {type(error).__name__}"
    if version != HEAD:
        return f"the database is at revision {version}, this version needs {HEAD}"
    try:
        free = shutil.disk_usage(platform.settings.data_dir).free
    except OSError as error:
        return f"the data folder cannot be read: {error.strerror}"
    if free < LEAST_FREE_BYTES:
        return f"{free} bytes are free in the data folder"
    return ""
