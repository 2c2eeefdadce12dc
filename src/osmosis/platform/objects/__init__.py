"""Stored bytes: datasets, uploads, artifacts, models and checkpoints; a key is a path below the data folder."""

from osmosis.platform.settings import PlatformSettings

from .s3 import S3Objects
from .store import LocalFolder, Objects


def open_objects(settings: PlatformSettings) -> Objects:
    if settings.objects:
        return S3Objects(settings.objects, settings.data_dir, settings.environ, limit_s=settings.objects_limit_s)
    return LocalFolder(settings.data_dir)
