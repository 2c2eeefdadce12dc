"""Settings of 0.2, from `OSMOSIS_ROLLOUT_*` variables and `./.env`; `configure` replaces them in code."""

from pydantic import Field, ValidationError as BadShape
from pydantic_settings import BaseSettings, SettingsConfigDict

from osmosis.base.variables import settings_error
from osmosis.records.protocol.v02 import DEFAULT_MAX_METADATA_SIZE_BYTES


def _config(prefix: str) -> SettingsConfigDict:
    return SettingsConfigDict(env_prefix=prefix, env_file=".env", env_file_encoding="utf-8", extra="ignore")


class RolloutClientSettings(BaseSettings):
    model_config = _config("OSMOSIS_ROLLOUT_CLIENT_")

    timeout_seconds: float = Field(default=300.0, ge=1, le=3600)
    max_retries: int = Field(default=3, ge=0, le=10)
    complete_rollout_retries: int = Field(default=2, ge=0, le=10)
    retry_base_delay: float = Field(default=1.0, ge=0.1, le=60)
    """Seconds; doubles with every retry."""
    retry_max_delay: float = Field(default=30.0, ge=1, le=300)
    max_connections: int = Field(default=100, ge=1, le=1000)
    max_keepalive_connections: int = Field(default=20, ge=1, le=100)


class RolloutServerSettings(BaseSettings):
    model_config = _config("OSMOSIS_ROLLOUT_SERVER_")

    max_concurrent_rollouts: int = Field(default=100, ge=1, le=10000)
    record_ttl_seconds: float = Field(default=3600.0, ge=60, le=86400)
    cleanup_interval_seconds: float = Field(default=60.0, ge=10, le=3600)
    request_timeout_seconds: float = Field(default=600.0, ge=10, le=3600)
    registration_readiness_timeout_seconds: float = Field(default=10.0, ge=1, le=60)
    registration_readiness_poll_interval_seconds: float = Field(default=0.2, ge=0.05, le=5)
    registration_shutdown_timeout_seconds: float = Field(default=30.0, ge=1, le=300)


class RolloutSettings(BaseSettings):
    model_config = _config("OSMOSIS_ROLLOUT_")

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)
    max_metadata_size_bytes: int = Field(
        default=DEFAULT_MAX_METADATA_SIZE_BYTES, ge=1024, le=100 * DEFAULT_MAX_METADATA_SIZE_BYTES
    )


_settings: RolloutSettings | None = None


def get_settings() -> RolloutSettings:
    global _settings
    if _settings is None:
        try:
            _settings = RolloutSettings()
        except BadShape as exc:
            kinds = (RolloutSettings, RolloutClientSettings, RolloutServerSettings)
            raise settings_error(exc, *kinds, hint="change it in the environment or in ./.env") from exc
    return _settings


def configure(settings: RolloutSettings | None) -> None:
    global _settings
    _settings = settings


def reset_settings() -> None:
    configure(None)
