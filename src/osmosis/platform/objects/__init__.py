"""Stored bytes: datasets, uploads, artifacts, models and checkpoints, each under a key that is its path below the data
folder.

`store` is the protocol; `local_folder` keeps objects in the data folder itself, `s3` in a bucket, with the data folder
as the place of working copies. `parts` takes in what arrives in pieces, `addresses` signs where it is sent and fetched.
"""

from __future__ import annotations

from osmosis.platform.settings import PlatformSettings

from .local_folder import LocalFolder
from .s3 import S3Objects
from .store import Objects


def open_objects(settings: PlatformSettings) -> Objects:
    """Where this platform keeps objects. UsageError when the library for a bucket is not installed."""
    if settings.objects:
        return S3Objects(settings.objects, settings.data_dir, settings.environ, limit_s=settings.objects_limit_s)
    return LocalFolder(settings.data_dir)
