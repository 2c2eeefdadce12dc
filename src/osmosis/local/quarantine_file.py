"""`quarantine.toml` of a workspace, in its top folder, committed like a config."""

from collections.abc import Callable
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.locks import locked
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, ValidationError
from osmosis.local.run_options import runs_folder
from osmosis.metrics.figures import Judged, judged
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rows import NAME, QuarantinedRow, RowQuarantine, parse_quarantine, place_key

_HEAD = "# Rows known to be flaky: they are shown, but do not count. osmosis eval quarantine --help\n"


def file_around(cwd: Path) -> Path:
    return runs_folder(cwd).parent.parent / NAME


def file_of_run(folder: Path) -> Path | None:
    runs = folder.resolve().parent
    return runs.parent.parent / NAME if (runs.parent.name, runs.name) == (".osmosis", "runs") else None


def read(path: Path) -> RowQuarantine:
    try:
        return parse_quarantine(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return RowQuarantine()
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path}: {error}") from error


def judged_by(quarantine: RowQuarantine, journal: Journal, plan: EvalPlan, report: Report) -> Judged:
    dataset = Path(plan.dataset).stem
    return judged(journal.rollouts, report, quarantine, dataset=dataset, plan=plan, score_names=list(plan.score_fns))


_RUNS_SEARCHED = 50


def check_row(cwd: Path, key: str, dataset: str) -> None:
    runs = sorted(runs_folder(cwd).glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    searched = []
    for path in runs[:_RUNS_SEARCHED]:
        journal = Journal(path.parent)
        if dataset in ("", Path(journal.plan().dataset).stem):
            if any(key in (rollout.row_key, place_key(rollout.row_index)) for rollout in journal.rollouts()):
                return
            searched.append(journal.folder.name)
    if searched:
        message = f"no row of {len(searched):,} local runs{f' over {dataset}' if dataset else ''} has the key {key!r}"
        raise NotFound(message, hint=f"name it by its place in a run: {searched[0]}:INDEX")


def add_entry(path: Path, entry: QuarantinedRow) -> None:
    _edit(path, drop=lambda other: (other.key, other.dataset) == (entry.key, entry.dataset), add=entry)


def remove_entries(path: Path, key: str) -> list[QuarantinedRow]:
    entries = read(path).about(key)
    if entries:
        _edit(path, drop=lambda other: other.key == key)
    return entries


def _edit(path: Path, *, drop: Callable[[QuarantinedRow], bool], add: QuarantinedRow | None = None) -> None:
    import tomlkit

    with locked(path.parent / ".osmosis" / "quarantine.lock"):
        stored = read(path).row
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else _HEAD)
        entries = document.get("row") or tomlkit.aot()
        for number in reversed([number for number, entry in enumerate(stored) if drop(entry)]):
            del entries[number]
        if add is not None:
            table = tomlkit.table()
            for name, value in add.model_dump(exclude_defaults=True).items():
                table[name] = value
            entries.append(table)
        document["row"] = entries
        write_text(path, tomlkit.dumps(document))
