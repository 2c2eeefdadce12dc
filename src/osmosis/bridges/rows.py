"""Rows for a dataset from elsewhere: a log, an environment's tasks, a dataset in the hub's layout."""

import importlib
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import uv

from osmosis.base.installation import install_command
from osmosis.base.jsonable import JsonObject
from osmosis.datasets.scan import read_rows
from osmosis.errors import NotFound, OsmosisError, UsageError, ValidationError
from osmosis.records.run.plan import Selection
from osmosis.sdk.foreign import PACKAGES, is_foreign, open_foreign, parse_foreign

from .import_run import read_logs
from .logs import row_of
from .mapped import SAMPLE, USUAL_NAMES, check_mapping

REASONING_GYM = "reasoning-gym"
HUB = "hf"
_MAKE_TASKS = """
import json, sys
import reasoning_gym
name, size, seed, config = json.loads(sys.argv[1])
for entry in reasoning_gym.create_dataset(name, size=size, seed=seed, **config):
    print(json.dumps(entry, default=str))
"""


def read_source(source: str, cwd: Path, *, size: int, seed: int, mapping: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield the rows of an environment (`reasoning-gym:NAME`), of `hf:FOLDER[:SPLIT]`, or of a log's path. Raise
    LoadError, NotFound, UsageError or ValidationError."""
    kind, _, name = source.partition(":")
    if kind == REASONING_GYM:
        name, options = parse_foreign(source)
        yield from make_reasoning_tasks(name, **{"size": size, "seed": seed, **options})
    elif is_foreign(source):
        yield from open_foreign(source, cwd).make_rows()
    elif kind == HUB:
        yield from read_hub(name, cwd, mapping)
    else:
        for run in read_logs(cwd / source, None, mapping):
            yield from (logged.row for logged in run.rollouts)


def make_reasoning_tasks(name: str, size: int, seed: int, **config: object) -> Iterator[JsonObject]:
    """Yield `size` tasks of one of reasoning-gym's generators; the same seed makes the same tasks. The package runs in
    an environment of its own, made by uv at the first call. `osmosis.bridges.rows:score_reasoning` scores an answer,
    where the agent's environment has the package."""
    arguments = orjson.dumps([name, size, seed, config]).decode()
    run = (uv.find_uv_bin(), "run", "--quiet", "--no-project", "--with", PACKAGES[REASONING_GYM])
    finished = subprocess.run([*run, "python", "-c", _MAKE_TASKS, arguments], capture_output=True, text=True)
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValidationError(
            f"reasoning-gym made no tasks of {name!r}: {last}", hint="reasoning-gym:NAME, as its gallery lists it"
        )
    for number, line in enumerate(finished.stdout.splitlines()):
        entry = orjson.loads(line)
        yield row_of(f"{name}-{seed}-{number}", entry["question"], entry["answer"], {"entry": entry})


def score_reasoning(solution_str: str, ground_truth: str, extra_info: JsonObject) -> float:
    """Score an answer as its reasoning-gym task does, 0 to 1: `--eval-fn osmosis.bridges.rows:score_reasoning`."""
    try:
        module = importlib.import_module("osmosis.sdk.foreign.reasoning_gym")
    except ImportError as error:
        raise OsmosisError("reasoning-gym is not installed", hint=install_command(PACKAGES[REASONING_GYM])) from error
    return float(module.score_answer(solution_str, extra_info["metadata"]["entry"]))


def read_hub(name: str, cwd: Path, mapping: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield the rows of a local copy of a hub's dataset: `FOLDER`, `FOLDER:SPLIT`; Parquet, JSONL or CSV."""
    folder_name, _, split = name.partition(":")
    folder = cwd / folder_name
    if not folder.is_dir():
        hint = (
            f"hf download --repo-type dataset {folder_name} --local-dir data/{Path(folder_name).name}, then hf:data/..."
        )
        raise NotFound(f"there is no folder {folder}", hint=hint)
    files = sorted(file for suffix in ("parquet", "jsonl", "csv") for file in folder.rglob(f"*.{suffix}"))
    chosen = [file for file in files if not split or file.stem.startswith(split) or split in file.parent.parts]
    if not chosen:
        stems = ", ".join(sorted({file.stem.partition("-")[0] for file in files})) or "none"
        raise NotFound(f"{folder} has no files of split {split or 'any'!r}; its splits: {stems}")
    check_mapping(mapping, islice(_read_table(chosen[0]), SAMPLE), chosen[0])
    for file in chosen:
        for number, line in enumerate(_read_table(file)):
            yield _map_columns(line, f"{file.stem}-{number}", mapping)


def _read_table(file: Path) -> Iterable[JsonObject]:
    if file.suffix == ".parquet":
        for batch in pq.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
        return
    yield from (row.data for row in read_rows(file, Selection()))


def _map_columns(line: JsonObject, id: str, mapping: Mapping[str, str]) -> JsonObject:
    columns = {key: next((name for name in usual if name in line), None) for key, usual in USUAL_NAMES.items()} | dict(
        mapping
    )
    prompt = line.get(columns["messages"] or "") or line.get(columns["prompt"] or "")
    if prompt is None:
        listed = ", ".join(map(str, line))
        raise UsageError(
            f"no column is the prompt; the columns: {listed}", hint="--map prompt=COLUMN --map target=COLUMN"
        )
    used = {columns[key] for key in ("id", "prompt", "messages", "target")}
    rest = {name: value for name, value in line.items() if name not in used and value is not None}
    own_id, target = line.get(columns["id"] or ""), line.get(columns["target"] or "")
    return row_of(id if own_id is None else own_id, prompt, target, rest)
