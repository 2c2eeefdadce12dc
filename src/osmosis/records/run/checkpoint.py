"""Checkpoint folders: complete when the manifest names every file with its size and hash."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError as BadShape

from osmosis.base.files import file_sha256
from osmosis.errors import ValidationError
from osmosis.records.base import Record

MANIFEST = "manifest.json"


class CheckpointFile(Record):
    name: str
    """Relative to the folder, with `/`."""
    size: int
    sha256: str


class CheckpointManifest(Record):
    version: Literal[1] = 1
    run: str
    step: int
    kind: Literal["regular", "stop", "final"]
    method: Literal["grpo", "sft", "dpo"]
    fingerprint: str
    base_model: str
    reward: float | None = None
    """On the held-out rows, else on those of the step."""
    created_at: str
    """ISO 8601, UTC."""
    versions: dict[str, str]
    files: list[CheckpointFile]


def describe_files(folder: Path) -> list[CheckpointFile]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)
    return [
        CheckpointFile(name=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in files
    ]


def read_manifest(folder: Path) -> CheckpointManifest:
    path = folder / MANIFEST
    hint = "resume from an earlier checkpoint of the run: complete ones have a manifest.json that fits their files"
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ValidationError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}", hint=hint) from None
    except (BadShape, OSError) as error:
        raise ValidationError(f"{path} cannot be read: {error}", hint=hint) from error
    for file in manifest.files:
        _check(folder, file, hint)
    return manifest


def is_complete(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except ValidationError:
        return False
    return True


def _check(folder: Path, file: CheckpointFile, hint: str) -> None:
    path = folder / file.name
    if folder.resolve() not in path.resolve().parents:
        raise ValidationError(f"the manifest of {folder} names {file.name}, which is outside of it", hint=hint)
    if not path.is_file():
        raise ValidationError(f"{folder} is not a complete checkpoint: {file.name} is missing", hint=hint)
    size = path.stat().st_size
    if size != file.size:
        problem = f"{file.name} has {size} bytes instead of {file.size}"
        raise ValidationError(f"{folder} is not a complete checkpoint: {problem}", hint=hint)
    if file_sha256(path) != file.sha256:
        raise ValidationError(f"{folder} is not a complete checkpoint: the content of {file.name} changed", hint=hint)
