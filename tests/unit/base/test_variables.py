"""Settings read the mapping they are given and nothing else; what they refuse is said of the variable."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, SecretStr

from osmosis.base.variables import Settings, SettingsError, Variable


class Kettle(Settings):
    label: str = "kettle"
    degrees: Annotated[int, Variable("KETTLE_DEGREES")] = Field(default=100, ge=0, le=100)
    code: Annotated[SecretStr, Variable("KETTLE_CODE")] = Field(default=SecretStr(""), max_length=4)


def test_given_over_variable_over_default() -> None:
    environ = {"KETTLE_DEGREES": "80", "LABEL": "no variable of a field"}
    assert (Kettle().degrees, Kettle(environ=environ).degrees) == (100, 80)
    assert Kettle(environ=environ, degrees=60).degrees == 60
    assert Kettle(environ=environ).label == "kettle"
    assert Kettle(environ={"KETTLE_DEGREES": ""}).degrees == 100


def test_the_environment_of_the_process_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KETTLE_DEGREES", "DEGREES", "degrees"):
        monkeypatch.setenv(name, "1")
    assert Kettle().degrees == Kettle(environ={}).degrees == 100


def test_a_refused_value_is_said_of_its_variable_and_a_secret_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        Kettle(environ={"KETTLE_DEGREES": "hot", "KETTLE_CODE": "hunter2"})
    assert "KETTLE_DEGREES=hot: input should be a valid integer" in caught.value.message
    assert "KETTLE_CODE: " in caught.value.message
    assert "hunter2" not in caught.value.message
    assert caught.value.hint
    with pytest.raises(SettingsError, match="kettel: extra inputs"):
        Kettle(kettel=1)


def test_settings_do_not_show_the_environment_or_a_secret() -> None:
    shown = repr(Kettle(environ={"KETTLE_CODE": "1234", "OTHER_TOKEN": "abcd"}))
    assert "1234" not in shown
    assert "abcd" not in shown
