"""The machine: its GPUs, Pythons, environments and variables, and folders of models."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, SecretStr

from osmosis.base.hardware import Gpu, find_python, gpu_names, list_gpus, pip_find_links
from osmosis.base.installation import MARKER, prune_environments
from osmosis.base.locks import lock_if_free
from osmosis.base.model_folder import check_model, check_name, is_model_file, list_model_files
from osmosis.base.variables import Settings, SettingsError, Variable
from osmosis.errors import ValidationError
from support.model_files import write_model, write_safetensors

DAY_S = 24 * 3600.0


def environment(cache: Path, name: str, *, days_ago: float) -> Path:
    folder = cache / "environments" / "workspace" / name
    (folder / "bin").mkdir(parents=True)
    (folder / MARKER).touch()
    os.utime(folder / MARKER, (time.time() - days_ago * DAY_S,) * 2)
    return folder


def test_only_what_is_old_and_free_is_removed(tmp_path: Path) -> None:
    old, used, busy = (environment(tmp_path, name, days_ago=days) for name, days in (("a", 15), ("b", 1), ("c", 15)))
    making = (tmp_path / "environments" / "workspace") / ".making-d"
    making.mkdir()
    wheel = tmp_path / "wheels" / "e"
    wheel.mkdir(parents=True)
    os.utime(wheel, (0, 0))
    with lock_if_free((tmp_path / "environments" / "workspace") / ".locks" / "c") as ours:
        assert ours
        assert sorted(prune_environments(tmp_path)) == ["a", "e"]
    assert [path.exists() for path in (old, used, busy, making, wheel)] == [False, True, True, True, False]
    assert prune_environments(tmp_path) == ["c"]


def test_an_empty_cache(tmp_path: Path) -> None:
    assert prune_environments(tmp_path / "none") == []


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_gpus_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    assert list_gpus(environ) == []
    program(tmp_path / "nvidia-smi", "echo 'NVIDIA H100 80GB HBM3, 81559'; echo 'NVIDIA L4, 23034'")
    assert list_gpus(environ) == [Gpu("NVIDIA H100 80GB HBM3", 81559 << 20), Gpu("NVIDIA L4", 23034 << 20)]
    expected = {"1": ["1"], "1,0": ["1", "0"], "0,-1,1": ["0"], "": [], "GPU-ab,GPU-cd": ["GPU-ab", "GPU-cd"]}
    for visible, names in expected.items():
        assert gpu_names({**environ, "CUDA_VISIBLE_DEVICES": visible}) == names
    assert list_gpus({**environ, "CUDA_VISIBLE_DEVICES": "1"}) == [Gpu("NVIDIA L4", 23034 << 20)]
    program(tmp_path / "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert list_gpus(environ) == []


def test_this_python_is_taken_when_it_is_new_enough() -> None:
    assert find_python((3, 10), os.environ) == Path(sys.executable)


def test_a_newer_python_is_looked_for_and_has_to_start(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    wanted = (3, sys.version_info[1] + 1)
    program(tmp_path / f"python3.{wanted[1]}", "echo 'not chosen by the version manager' >&2; exit 127")
    shim = f"echo '3 {wanted[1] + 1} /opt/python/bin/python3.x'"
    program(tmp_path / f"python3.{wanted[1] + 1}", shim)
    assert find_python(wanted, environ, running=(3, 9)) == Path("/opt/python/bin/python3.x")


def test_no_python_is_new_enough(tmp_path: Path) -> None:
    assert find_python((3, 90), {"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("section", ["global", "install"])
def test_find_links_are_pips(tmp_path: Path, section: str) -> None:
    assert pip_find_links({"PIP_FIND_LINKS": "/a https://b/c"}) == ["/a", "https://b/c"]
    config = tmp_path / "pip.conf"
    config.write_text(f"[{section}]\nfind-links =\n    /wheels\n    https://b/c%20d\n")
    assert pip_find_links({"PIP_CONFIG_FILE": str(config)}) == ["/wheels", "https://b/c%20d"]
    config.write_text("no config at all")
    assert pip_find_links({"PIP_CONFIG_FILE": str(config)}) == []


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


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    facts = check_model(write_model(tmp_path, numbers=500))
    assert (facts.architecture, facts.parameters, facts.context_length) == ("Qwen3ForCausalLM", 500, 512)
    assert facts.chat_template
    assert facts.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert not check_model(write_model(tmp_path, template=False)).chat_template


def test_only_the_models_own_files_go_along(tmp_path: Path) -> None:
    write_model(tmp_path)
    for name in ("modeling_custom.py", "README.md", "pytorch_model.bin", "training_args.bin"):
        (tmp_path / name).write_text("x")
    names = [path.name for path in list_model_files(tmp_path)]
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", ["../config.json", "/etc/config.json", "a/model.safetensors", "x.py", "weights.bin"])
def test_no_other_name_is_taken(name: str) -> None:
    assert not is_model_file(name)
    with pytest.raises(ValidationError, match="not a file of a model"):
        check_name(name)


def shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": [3, 5]})
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def endless_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json is not a JSON object"),
    (lambda folder: (folder / "config.json").write_text('{"model_type": 3}'), "names no model_type and architectures"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pytorch_model.bin is of"),
    (cut, "model.safetensors is not a complete safetensors file"),
    (endless_header, "model.safetensors is not a complete safetensors file"),
    (shards, "model-00002-of-00002.safetensors, which model.safetensors.index.json names, is missing"),
]


@pytest.mark.parametrize(("damage", "words"), BROKEN)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(write_model(tmp_path))
    with pytest.raises(ValidationError, match=words) as refused:
        check_model(tmp_path)
    assert refused.value.hint


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is not a folder"):
        list_model_files(tmp_path / "nowhere")
