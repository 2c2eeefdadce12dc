import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import orjson

from osmosis.base.files import replacing
from osmosis.bridges import atif, deepeval, inspect_ai, lm_eval, mapped, openai_evals, promptfoo, verifiers
from osmosis.bridges.logs import LoggedRun
from osmosis.datasets.scan import row_hash
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, NotFound, OsmosisError, UsageError, ValidationError
from osmosis.metrics.summary import Summary
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout

READERS: tuple[ModuleType, ...] = (inspect_ai, verifiers, lm_eval, promptfoo, deepeval, openai_evals, atif)
FORMATS = (*(reader.NAME for reader in READERS), mapped.LANGFUSE, mapped.NAME)
ROWS = "rows.jsonl"
BATCH = 256


@dataclass(frozen=True, slots=True)
class Imported:
    name: str
    folder: Path
    format: str
    report: Report


@contextmanager
def _refuse_unreadable(path: Path, format: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, OsmosisError):
            raise
        message = f"{path} cannot be read as a log of {format}: {type(error).__name__}: {error}"
        hint = "--format, when it is a log of another tool; else report it with the tool's version"
        raise ValidationError(message, hint=hint) from error


def read_logs(path: Path, format: str | None = None, mapping: Mapping[str, str] | None = None) -> list[LoggedRun]:
    if not path.exists():
        raise NotFound(f"there is no {path}", hint="osmosis eval import PATH of a log, or of a folder of logs")
    if format is not None and format not in FORMATS:
        raise UsageError(f"{format!r} is not a format", hint=f"one of: {', '.join(FORMATS)}")
    with _refuse_unreadable(path, format or "a known tool"):
        if mapping or format == mapped.NAME:
            return mapped.read(path, mapping or {})
        for reader in READERS:
            if format == reader.NAME or (format is None and reader.is_log(path)):
                runs: list[LoggedRun] = reader.read(path)
                return runs
        # After the others, which look at a beginning only: this reads the whole file.
        if format == mapped.LANGFUSE or (path.is_file() and mapped.is_langfuse(path)):
            return mapped.read(path, {}, format=mapped.LANGFUSE)
        if path.is_dir():
            files = [file for file in sorted(path.iterdir()) if file.is_file() and inspect_ai.is_log(file)]
            if files:
                return [run for file in files for run in inspect_ai.read(file)]
        if path.is_file() and path.suffix in (".json", ".jsonl"):
            return mapped.read(path, {})
        raise ValidationError(f"{path} has no format that is recognised", hint=f"give --format: {', '.join(FORMATS)}")


def import_run(logged: LoggedRun, folder: Path, *, source: Path, pass_threshold: float = 1.0) -> Imported:
    """Store one run in a new folder. Raise Conflict when it exists; nothing is left of one that cannot be read."""
    if folder.exists():
        raise Conflict(f"there is already a run in {folder}", hint="--name NEW, or osmosis eval delete it first")
    plan = EvalPlan(
        name=folder.name,
        agent=logged.agent,
        model=ModelSpec(name=logged.model, kind="litellm", params=logged.params),
        dataset=str(folder / ROWS),
        score_fns=logged.scores,
        pass_threshold=pass_threshold,
        provenance={"imported": {"format": logged.format, "source": source.name, **logged.facts}},
    )
    draft = folder.with_name(f".{folder.name}.import")
    shutil.rmtree(draft, ignore_errors=True)  # of an import that was killed
    journal = Journal(draft)
    try:
        journal.open(plan, facts={"created_at": logged.created_at.isoformat()} if logged.created_at else {})
        with _refuse_unreadable(source, logged.format):
            rows, plan, summary, spent_ms = _store(logged, journal, plan)
        journal.note(plan=plan.model_dump(mode="json"), rows=rows)
        journal.session_took(spent_ms)
        report = summary.report(rows=rows, duration_ms=spent_ms, dataset_rows=rows)
        journal.write_report(report)
        journal.close()
        draft.rename(folder)
    finally:
        journal.close()
        shutil.rmtree(draft, ignore_errors=True)
    return Imported(folder.name, folder, logged.format, report)


def _store(logged: LoggedRun, journal: Journal, plan: EvalPlan) -> tuple[int, EvalPlan, Summary, float]:
    indexes: dict[str, int] = {}
    hashes: dict[str, str] = {}
    places: set[tuple[str, int]] = set()
    batch: list[Rollout] = []
    digest, attempts, spent_ms = sha256(), 1, 0.0
    with replacing(journal.folder / ROWS) as rows:
        for sample in logged.rollouts:
            key, rollout = str(sample.row["id"]), sample.rollout
            if key not in indexes:
                line = orjson.dumps(sample.row, default=str) + b"\n"
                indexes[key], hashes[key] = len(indexes), row_hash(orjson.loads(line))
                digest.update(line)
                rows.write(line)
            while (key, rollout.attempt) in places:  # a log that numbers its repeats otherwise, or not at all
                rollout.attempt += 1
            places.add((key, rollout.attempt))
            rollout.rollout_id = rollout.rollout_id or f"{key}-{rollout.attempt}"
            rollout.row_key, rollout.row_index, rollout.hashes = key, indexes[key], {"row": hashes[key]}
            attempts, spent_ms = max(attempts, rollout.attempt + 1), spent_ms + rollout.duration_ms
            batch.append(rollout)
            if len(batch) == BATCH:
                journal.append_all(batch)
                batch = []
    journal.append_all(batch)
    if not indexes:
        raise ValidationError(f"{logged.agent} has no samples in this log")
    plan = plan.model_copy(update={"attempts": attempts, "dataset_hash": digest.hexdigest()})
    summary = Summary(plan, score_names=plan.score_fns)
    for outcome in journal.rollouts():
        summary.add(outcome)
    return len(indexes), plan, summary, spent_ms
