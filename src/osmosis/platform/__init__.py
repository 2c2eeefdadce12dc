"""The self-hosted platform. It never imports user code, the engine or a model library."""

from dataclasses import dataclass, field

from osmosis.platform.auth.rate_limits import RateLimits
from osmosis.platform.backup.upgrade import upgrade
from osmosis.platform.db import Database
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.store import Objects
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Vault


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
