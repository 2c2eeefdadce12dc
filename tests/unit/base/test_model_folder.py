"""Which files are a model, and which folders are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis.base.model_folder import belongs, check_model, check_name, model_files
from osmosis.errors import ValidationError
from osmosis.testing.model_files import write_model, write_safetensors


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
    names = [path.name for path in model_files(tmp_path)]
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", ["../config.json", "/etc/config.json", "a/model.safetensors", "x.py", "weights.bin"])
def test_no_other_name_is_taken(name: str) -> None:
    assert not belongs(name)
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
        model_files(tmp_path / "nowhere")
