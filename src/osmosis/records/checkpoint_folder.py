"""When a checkpoint is one: a folder whose manifest names every file with its size and hash.

The trainer writes a checkpoint aside, the manifest last, and renames the folder into place. A folder without a
manifest, or with a file that differs from it, is no checkpoint, whatever else is in there: resuming from one that lost
its optimizer would go on without an error, and wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError as BadShape

from osmosis.base.checksum import file_sha256
from osmosis.errors import ValidationError

from .base import Record

MANIFEST = "manifest.json"


class CheckpointFile(Record):
    name: str
    """Relative to the folder, with `/`."""
    size: int
    sha256: str


class CheckpointManifest(Record):
    """`manifest.json` of a checkpoint folder."""

    version: Literal[1] = 1
    run: str
    step: int
    kind: Literal["regular", "stop", "final"]
    method: Literal["grpo", "sft"]
    fingerprint: str
    """Of the plan (`TrainerPlan.fingerprint`)."""
    base_model: str
    """`model_path` of the plan."""
    reward: float | None = None
    """Of its weights: on the held-out rows, else on those of the step."""
    created_at: str
    """ISO 8601, UTC."""
    versions: dict[str, str]
    """Of the libraries that wrote it."""
    files: list[CheckpointFile]


def describe_files(folder: Path) -> list[CheckpointFile]:
    """Every file of the folder but the manifest, sorted by name."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)
    return [
        CheckpointFile(name=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in found
    ]


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a complete checkpoint; raises `ValidationError` that says what is missing or differs."""
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
    """Whether `read_manifest` would accept it."""
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
        what = f"{file.name} has {size} bytes instead of {file.size}"
        raise ValidationError(f"{folder} is not a complete checkpoint: {what}", hint=hint)
    if file_sha256(path) != file.sha256:
        raise ValidationError(f"{folder} is not a complete checkpoint: the content of {file.name} changed", hint=hint)
