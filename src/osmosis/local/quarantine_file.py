"""`quarantine.toml` of a workspace, read, and changed by command as one changes it by hand.

The file lies in the top folder, beside `.osmosis/`, and is committed like a config. One that cannot be read stops
whoever asks it: a gate that passes over it would decide by rows that somebody took out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.files import write_text
from osmosis.base.locks import locked
from osmosis.errors import ValidationError
from osmosis.records.quarantine import QuarantinedRow, RowQuarantine

from .request import runs_folder

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

NAME = "quarantine.toml"
_HEAD = "# Rows that are known to be flaky: they are shown and decide nothing. osmosis eval quarantine --help\n"


def file_around(cwd: Path) -> Path:
    """The file of the workspace around this folder, else of the folder itself; it need not exist."""
    return runs_folder(cwd).parent.parent / NAME


def file_of_run(folder: Path) -> Path | None:
    """The file of the workspace in whose `.osmosis/runs` this run lies; None for a run that lies elsewhere."""
    runs = folder.resolve().parent
    return runs.parent.parent / NAME if (runs.parent.name, runs.name) == (".osmosis", "runs") else None


def read(path: Path) -> RowQuarantine:
    """What it holds; nothing where there is no file. Raises ValidationError with all that is wrong."""
    try:
        return RowQuarantine.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return RowQuarantine()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValidationError(f"{path}: {error}") from error
    except PydanticError as error:
        said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        hint = f"each [[row]] has {', '.join(QuarantinedRow.model_fields)}"
        raise ValidationError(f"{path}: {'; '.join(said)}", hint=hint) from error


def put(path: Path, entry: QuarantinedRow) -> None:
    """Adds it, instead of one that there is for the same row of the same dataset."""
    _edit(path, drop=lambda one: (one.key, one.dataset) == (entry.key, entry.dataset), add=entry)


def take(path: Path, key: str) -> list[QuarantinedRow]:
    """Takes away what is said about this row; what that was."""
    found = read(path).about(key)
    if found:
        _edit(path, drop=lambda one: one.key == key)
    return found


def _edit(path: Path, *, drop: Callable[[QuarantinedRow], bool], add: QuarantinedRow | None = None) -> None:
    """Rewrites the file; comments and the other entries stay as they are."""
    import tomlkit

    with locked(path.parent / ".osmosis" / "quarantine.lock"):
        known = read(path).row
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else _HEAD)
        entries = document.get("row") or tomlkit.aot()
        for number in reversed([number for number, one in enumerate(known) if drop(one)]):
            del entries[number]
        if add is not None:
            table = tomlkit.table()
            for name, value in add.model_dump(exclude_defaults=True).items():
                table[name] = value
            entries.append(table)
        document["row"] = entries
        write_text(path, tomlkit.dumps(document))
