"""Write a stored run in the format of another tool."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from osmosis._version import __version__
from osmosis.bridges import inspect_ai_export
from osmosis.bridges.table import flat_rollouts, read_dataset
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict
from osmosis.records.run.rollout import CallTokens
from osmosis.records.trajectory import trajectory_from_rollout

FileFormat = Literal["inspect", "atif", "jsonl", "csv", "parquet", "huggingface"]
Tool = Literal["mlflow", "tensorboard", "trackio", "wandb", "otlp", "langfuse", "weave"]
ExportFormat = Literal[FileFormat, Tool]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)
_SUFFIXES = {"inspect": ".json", "jsonl": ".jsonl", "csv": ".csv", "parquet": ".parquet"}
_CARD = """---
configs:
  - config_name: default
    data_files: data/*.parquet
tags: [evaluation]
---
# {name}

{count} rollouts of `{agent}` with `{model}`, exported by osmosis {version}.
"""


def default_path(name: str, format: ExportFormat) -> Path:
    return Path(f"{name}{_SUFFIXES.get(format, f'-{format}')}")


def export_run(journal: Journal, format: ExportFormat, output: Path, *, overwrite: bool = False) -> int:
    """Write the run to a file, or a folder (ATIF, Hugging Face); return the number of rollouts. Raise Conflict."""
    if output.exists() and not overwrite:
        raise Conflict(f"{output} exists", hint="--output ANOTHER, or --overwrite")
    plan = journal.plan()
    if format == "atif":
        output.mkdir(parents=True, exist_ok=True)
        tokens: dict[str, list[CallTokens | None]] = dict(journal.tokens())
        count = 0
        for rollout in journal.rollouts():
            for call, call_tokens in zip(rollout.calls, tokens.get(rollout.rollout_id, ()), strict=False):
                call.tokens = call_tokens
            document = trajectory_from_rollout(rollout, version=__version__).to_export()
            name = f"{rollout.row_index}-{rollout.attempt}-{rollout.rollout_id}"
            (output / f"{name}.trajectory.json").write_bytes(orjson.dumps(document))
            count += 1
        return count
    if format == "huggingface":
        (output / "data").mkdir(parents=True, exist_ok=True)
        count = write_parquet(flat_rollouts(journal), output / "data" / "train-00000-of-00001.parquet")
        card = _CARD.format(name=plan.name, count=count, agent=plan.agent, model=plan.model.name, version=__version__)
        (output / "README.md").write_text(card, encoding="utf-8")
        return count
    output.parent.mkdir(parents=True, exist_ok=True)
    if format == "inspect":
        created_at = str(journal.run()["created_at"])
        return inspect_ai_export.write(journal.rollouts(), plan, read_dataset(plan), output, created_at)
    if format == "jsonl":
        with output.open("wb") as out:
            return sum(bool(out.write(orjson.dumps(row) + b"\n")) for row in flat_rollouts(journal))
    return (write_csv if format == "csv" else write_parquet)(flat_rollouts(journal), output)


def write_csv(rows: Iterable[dict[str, object]], path: Path) -> int:
    listed = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in listed for name in row)))
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in listed)
    return len(listed)


def write_parquet(rows: Iterable[dict[str, object]], path: Path) -> int:
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    columns = {name: [_cell(row.get(name)) for row in listed] for name in names}
    pq.write_table(pa.table({name: _array(values) for name, values in columns.items()}), path)
    return len(listed)


def _array(values: list[object]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def _cell(value: object) -> object:
    return orjson.dumps(value, default=str).decode() if isinstance(value, (dict, list)) else value
