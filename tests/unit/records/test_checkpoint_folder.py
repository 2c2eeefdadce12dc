"""A folder is a checkpoint when its manifest fits every file in it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.records.checkpoint_folder import MANIFEST, describe_files
from osmosis.training.link import CheckpointManifest, is_complete, read_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights.safetensors").write_bytes(b"weights")
    (tmp_path / "optimizer.pt").write_bytes(b"moments")
    manifest = CheckpointManifest(
        run="r", step=3, kind="regular", method="grpo", fingerprint="f", base_model="m", created_at="now", versions={},
        files=describe_files(tmp_path),
    )  # fmt: skip
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json())
    return tmp_path


def test_a_complete_one_is_read(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.step == 3
    assert [file.name for file in manifest.files] == ["adapter/weights.safetensors", "optimizer.pt"]


def test_a_partial_one_is_refused_with_what_is_missing(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    with pytest.raises(ValidationError, match=r"optimizer\.pt is missing"):
        read_manifest(folder)
    (folder / "optimizer.pt").write_bytes(b"moment")
    with pytest.raises(ValidationError, match="6 bytes instead of 7"):
        read_manifest(folder)
    (folder / "optimizer.pt").write_bytes(b"momentS")
    with pytest.raises(ValidationError, match=r"content of optimizer\.pt changed"):
        read_manifest(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(ValidationError, match=r"has no manifest\.json"):
        read_manifest(folder)
    assert not is_complete(folder)


def test_a_manifest_cannot_name_files_outside(folder: Path) -> None:
    text = (folder / MANIFEST).read_text().replace("optimizer.pt", "../optimizer.pt")
    (folder / MANIFEST).write_text(text)
    with pytest.raises(ValidationError, match="outside"):
        read_manifest(folder)


def test_a_broken_manifest_is_an_error_of_ours(folder: Path) -> None:
    (folder / MANIFEST).write_text("{")
    with pytest.raises(ValidationError, match="cannot be read"):
        read_manifest(folder)
