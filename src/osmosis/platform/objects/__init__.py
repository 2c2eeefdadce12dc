"""Stored bytes: datasets, uploads, artifacts, models and checkpoints; a key is a path below the data folder."""

from osmosis.platform.objects.s3 import S3Objects
from osmosis.platform.objects.store import LocalFolder, Objects
from osmosis.platform.settings import PlatformSettings


def open_objects(settings: PlatformSettings) -> Objects:
    if settings.objects:
        return S3Objects(settings.objects, settings.data_dir, settings.environ, limit_s=settings.objects_limit_s)
    return LocalFolder(settings.data_dir)
