"""Settings from environment variables that are passed in: what is given in code over a variable, over the default.

pydantic-settings does the reading and checking; this adds a source over a given mapping, so that nothing below the
borders reads the environment of the process, and errors that name the variable. Costs too much at the start of a
command line to be imported there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, SecretStr
from pydantic import ValidationError as BadShape
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from osmosis.errors import ValidationError


class SettingsError(ValidationError, ValueError):
    """A setting has an invalid value."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Metadata of a field that a variable of this name sets; an empty variable sets nothing."""

    name: str


class GivenEnvironment(PydanticBaseSettingsSource):
    """The variables that the fields name, from a mapping."""

    def __init__(self, settings: type[BaseSettings], environ: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._environ = environ

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[str | None, str, bool]:
        variable = variable_of(field)
        return (self._environ.get(variable) or None if variable else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


class Settings(BaseSettings):
    """Settings that read `environ`, and never the environment of the process. Refused values are a `SettingsError`."""

    model_config = SettingsConfigDict(frozen=True)

    environ: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """The environment to read; of a process, the whole of it."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except BadShape as error:
            hint = "correct it where it is set: on the command line or in the environment"
            raise refused(error, type(self), hint=hint) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, GivenEnvironment(settings_cls, init_settings().get("environ") or {})


def variable_of(field: FieldInfo) -> str | None:
    """The variable that sets a field, as far as its metadata names one."""
    return next((part.name for part in field.metadata if isinstance(part, Variable)), None)


def refused(error: BadShape, *kinds: type[BaseSettings], hint: str) -> SettingsError:
    """The error of settings of one of these kinds, each value under the name that sets it; secrets are not shown."""
    kind = next((kind for kind in kinds if kind.__name__ == error.title), kinds[0])
    return SettingsError("; ".join(_said(kind, found) for found in error.errors(include_url=False)), hint=hint)


def _said(kind: type[BaseSettings], found: ErrorDetails) -> str:
    name = "_".join(map(str, found["loc"]))
    field = kind.model_fields.get(str(found["loc"][0])) if found["loc"] else None
    variable = variable_of(field) if field else None
    prefix = str(kind.model_config.get("env_prefix") or "")
    shown = variable or (f"{prefix}{name}".upper() if prefix else name)
    hidden = field is None or field.annotation is SecretStr or not field.repr or found["type"] == "missing"
    value = "" if hidden else f"={found['input']}"
    message = found["msg"].removeprefix("Value error, ")
    if not found["loc"]:  # about several of them, which it names itself
        return message
    return f"{shown}{value}: {message[:1].lower()}{message[1:]}"
