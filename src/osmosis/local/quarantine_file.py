"""`quarantine.toml` of a workspace, read, and changed by command as one changes it by hand.

The file lies in the top folder, beside `.osmosis/`, and is committed like a config. One that cannot be read stops
whoever asks it: a gate that passes over it would decide by rows that somebody took out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.locks import locked
from osmosis.engine.journal import Journal
from osmosis.errors import ValidationError
from osmosis.metrics.judged import Judged, judged
from osmosis.records.plan import EvalPlan
from osmosis.records.quarantine import NAME, QuarantinedRow, RowQuarantine, quarantine_of
from osmosis.records.report import Report

from .request import runs_folder

_HEAD = "# Rows known to be flaky: they are shown, but do not count. osmosis eval quarantine --help\n"


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
        return quarantine_of(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return RowQuarantine.made()
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path}: {error}") from error


def judged_by(quarantine: RowQuarantine, journal: Journal, plan: EvalPlan, report: Report) -> Judged:
    """The figures that decide about a local run."""
    dataset = Path(plan.dataset).stem
    return judged(journal.outcomes, report, quarantine, dataset=dataset, plan=plan, score_names=list(plan.score_fns))


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
