"""Settings from environment variables that are passed in: arguments win over variables, which win over defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, SecretStr, ValidationError as BadShape
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from osmosis.errors import ValidationError


class SettingsError(ValidationError, ValueError): ...


@dataclass(frozen=True, slots=True)
class Variable:
    """Field metadata: the variable that sets it; an empty variable sets nothing."""

    name: str


class GivenEnvironment(PydanticBaseSettingsSource):
    def __init__(self, settings: type[BaseSettings], environ: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._environ = environ

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[str | None, str, bool]:
        variable = find_variable(field)
        return (self._environ.get(variable) or None if variable else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


class Settings(BaseSettings):
    """Settings that read `environ`, never the environment of the process. Raises `SettingsError`."""

    model_config = SettingsConfigDict(frozen=True)

    environ: Mapping[str, str] = Field(default_factory=dict, repr=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except BadShape as error:
            hint = "correct it where it is set: on the command line or in the environment"
            raise settings_error(error, type(self), hint=hint) from None

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


def find_variable(field: FieldInfo) -> str | None:
    return next((part.name for part in field.metadata if isinstance(part, Variable)), None)


def settings_error(error: BadShape, *kinds: type[BaseSettings], hint: str) -> SettingsError:
    """Convert the error, with each value under the name that sets it; secrets are not shown."""
    kind = next((kind for kind in kinds if kind.__name__ == error.title), kinds[0])
    return SettingsError("; ".join(_describe(kind, detail) for detail in error.errors(include_url=False)), hint=hint)


def _describe(kind: type[BaseSettings], detail: ErrorDetails) -> str:
    name = "_".join(map(str, detail["loc"]))
    field = kind.model_fields.get(str(detail["loc"][0])) if detail["loc"] else None
    variable = find_variable(field) if field else None
    prefix = str(kind.model_config.get("env_prefix") or "")
    label = variable or (f"{prefix}{name}".upper() if prefix else name)
    hidden = field is None or field.annotation is SecretStr or not field.repr or detail["type"] == "missing"
    value = "" if hidden else f"={detail['input']}"
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:  # about several of them, which it names itself
        return message
    return f"{label}{value}: {message[:1].lower()}{message[1:]}"
