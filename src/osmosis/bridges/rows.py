import csv
import importlib
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, takewhile
from pathlib import Path

import httpx
import orjson
import pyarrow.parquet as pq
import uv

from osmosis.base.installation import install_command
from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.bridges.import_run import read_logs
from osmosis.bridges.mapped import LANGFUSE, SAMPLE, check_mapping, complete_mapping
from osmosis.bridges.promptfoo import read_tests
from osmosis.bridges.spans import iterate_spans, load_json, read_attributes, read_conversation
from osmosis.bridges.table import read_dataset
from osmosis.engine.journal import AnnotationFile, StoredRollouts
from osmosis.errors import NotFound, OsmosisError, UsageError, ValidationError
from osmosis.records.run.annotations import keep_newest
from osmosis.records.run.rollout import Message, Rollout
from osmosis.sdk.foreign import PACKAGES, is_foreign, open_foreign, parse_foreign

REASONING_GYM = "reasoning-gym"
HUB = "hf"
DATASETS_SERVER = "https://datasets-server.huggingface.co"
PAGE = 100
ROW_NAMES = ("id", "prompt", "messages", "target")
_POSITION = "\0position"
_EVALUATION = "gen_ai.evaluation.result"
_MAKE_TASKS = """
import json, sys
import reasoning_gym
name, size, seed, config = json.loads(sys.argv[1])
for entry in reasoning_gym.create_dataset(name, size=size, seed=seed, **config):
    print(json.dumps(entry, default=str))
"""


def read_source(
    source: str,
    cwd: Path,
    *,
    size: int,
    seed: int,
    mapping: Mapping[str, str],
    environ: Mapping[str, str],
    approve: Callable[[Mapping[str, str]], None],
) -> Iterator[JsonObject]:
    """Yield the rows of an environment (`reasoning-gym:NAME`), a hub's dataset (`hf:FOLDER[:SPLIT]`,
    `hf:ORG/NAME[:SPLIT]`), traces (`otlp:FILE`, `langfuse:FILE`), a local run's folder (`journal:FOLDER`), the tests of
    promptfoo (`promptfoo:FILE`), or a log's path. `approve` is given the columns before they are mapped, and raises to
    stop. Raise LoadError, NotFound, UsageError or ValidationError."""
    kind, _, name = source.partition(":")
    path = cwd / (name or source)
    if kind == REASONING_GYM:
        name, options = parse_foreign(source)
        yield from make_reasoning_tasks(name, **{"size": size, "seed": seed, **options})
    elif is_foreign(source):
        yield from open_foreign(source, cwd).make_rows()
    elif kind == HUB:
        files, split = (cwd / name.partition(":")[0]), name.partition(":")[2]
        lines = read_hub(files, split) if files.is_dir() else read_hub_server(name.partition(":")[0], split, environ)
        yield from _map_rows(lines, name, mapping, approve)
    elif kind == "journal":
        yield from read_journal(path)
    elif kind in ("otlp", "promptfoo") or path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
        is_results = path.suffix == ".json" and kind == "promptfoo"
        yield from (
            read_otlp(path) if kind == "otlp" else _logged(path, None, {}, approve) if is_results else read_tests(path)
        )
    else:
        is_langfuse = kind == LANGFUSE
        yield from _logged(path, LANGFUSE if is_langfuse else None, {} if is_langfuse else mapping, approve)


def _logged(
    path: Path, format: str | None, mapping: Mapping[str, str], approve: Callable[[Mapping[str, str]], None]
) -> Iterator[JsonObject]:
    for run in read_logs(path, format, mapping):
        if columns := run.facts.get("mapping"):
            approve({name: columns[name] for name in ROW_NAMES if name in columns})
        for logged in run.rollouts:
            scores = {name: score.value for name, score in logged.rollout.scores.items() if run.format == LANGFUSE}
            if scores:
                logged.row["metadata"] = {**logged.row.get("metadata", {}), "scores": scores}
            yield logged.row


def make_reasoning_tasks(name: str, size: int, seed: int, **config: object) -> Iterator[JsonObject]:
    """Yield `size` tasks of one of reasoning-gym's generators; the same seed makes the same tasks. The package runs in
    an environment of its own, made by uv at the first call."""
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
        yield logs.row_of(f"{name}-{seed}-{number}", entry["question"], entry["answer"], {"entry": entry})


def score_reasoning(solution_str: str, ground_truth: str, extra_info: JsonObject) -> float:
    """Score an answer as its reasoning-gym task does, 0 to 1: `--eval-fn osmosis.bridges.rows:score_reasoning`."""
    try:
        module = importlib.import_module("osmosis.sdk.foreign.reasoning_gym")
    except ImportError as error:
        raise OsmosisError("reasoning-gym is not installed", hint=install_command(PACKAGES[REASONING_GYM])) from error
    return float(module.score_answer(solution_str, extra_info["metadata"]["entry"]))


def read_hub(folder: Path, split: str) -> Iterator[JsonObject]:
    files = sorted(file for suffix in ("parquet", "jsonl", "csv") for file in folder.rglob(f"*.{suffix}"))
    chosen = [file for file in files if not split or file.stem.startswith(split) or split in file.parent.parts]
    if not chosen:
        stems = ", ".join(sorted({file.stem.partition("-")[0] for file in files})) or "none"
        raise NotFound(f"{folder} has no files of split {split or 'any'!r}; its splits: {stems}")
    for file in chosen:
        for number, line in enumerate(_read_table(file)):
            yield {_POSITION: f"{file.stem}-{number}", **line}


def read_hub_server(name: str, split: str, environ: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield the lines of `ORG/NAME[/CONFIG]` from the hub's server of datasets (its `/splits` and `/rows`)."""
    dataset, config = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:])
    hint = f"hf download --repo-type dataset {dataset} --local-dir data/{Path(dataset).name}, then hf:data/..."
    token = environ.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    base = environ.get("OSMOSIS_DATASETS_SERVER", DATASETS_SERVER)
    with httpx.Client(base_url=base, headers=headers, timeout=30, transport=httpx.HTTPTransport(retries=2)) as client:

        def ask(path: str, **params: str | int) -> JsonObject:
            try:
                answer = client.get(path, params={"dataset": dataset, **params})
                answer.raise_for_status()
                body: JsonObject = answer.json()
                return body
            except (httpx.HTTPError, ValueError) as error:
                raise NotFound(f"there is no folder {name}, and {base} does not have it: {error}", hint=hint) from error

        splits = [(item["config"], item["split"]) for item in ask("/splits")["splits"]]
        chosen = [pair for pair in splits if pair[0] == (config or pair[0]) and pair[1] == (split or pair[1])]
        chosen = [pair for pair in chosen if pair[1] == "train"] if len(chosen) > 1 and not split else chosen
        if len(chosen) != 1:
            listed = ", ".join(f"hf:{dataset}/{config}:{split}" for config, split in splits)
            raise UsageError(f"which split of {dataset}?", hint=listed)
        query, offset, total = dict(zip(("config", "split"), chosen[0], strict=True)), 0, 1
        while offset < total:
            page = ask("/rows", **query, offset=offset, length=PAGE)
            total = page["num_rows_total"] if page["rows"] else 0
            for item in page["rows"]:
                if item["truncated_cells"]:
                    raise ValidationError(f"{base} cuts row {item['row_idx']} of {dataset} short", hint=hint)
                yield {_POSITION: f"{chosen[0][1]}-{item['row_idx']}", **item["row"]}
            offset += len(page["rows"])


def _read_table(file: Path) -> Iterable[JsonObject]:
    if file.suffix == ".parquet":
        for batch in pq.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    elif file.suffix == ".jsonl":
        yield from logs.read_lines(file)
    else:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from csv.DictReader(lines)


def _map_rows(
    lines: Iterator[JsonObject], name: str, mapping: Mapping[str, str], approve: Callable[[Mapping[str, str]], None]
) -> Iterator[JsonObject]:
    first = list(islice(lines, SAMPLE))
    names = list(dict.fromkeys(column for line in first for column in line if column != _POSITION))
    check_mapping(mapping, first, Path(name))
    columns = complete_mapping(dict.fromkeys(names), mapping)
    if not {"prompt", "messages"} & set(columns):
        hint = "--map prompt=COLUMN --map target=COLUMN"
        raise UsageError(f"no column is the prompt; the columns: {', '.join(names)}", hint=hint)
    columns = {name: columns[name] for name in ROW_NAMES if name in columns}
    approve(columns)
    for line in chain(first, lines):
        position = line.pop(_POSITION)
        values = {name: line.get(column) for name, column in columns.items()}
        used = set(columns.values())
        rest = {name: value for name, value in line.items() if name not in used and value is not None}
        own_id, prompt = values.get("id"), values.get("messages") or values.get("prompt")
        yield logs.row_of(position if own_id is None else own_id, prompt or "", values.get("target"), rest)


def read_journal(folder: Path) -> Iterator[JsonObject]:
    stored = StoredRollouts(folder)
    rows, labels, written = read_dataset(stored.plan()), dict[str, dict[str, str]](), set[str]()
    for note in keep_newest(AnnotationFile(folder).read()):
        labels.setdefault(note.row_key or "", {})[note.author] = note.label or note.comment or f"{note.score:g}"
    for line in stored.in_order():
        rollout = Rollout.model_validate(line)
        key = str(rollout.row_key)
        row = rows.get(key) or logs.row_of(key, _opening(rollout.messages))
        metadata = {"tools": rollout.tools, "labels": labels.get(key)}
        if key not in written:
            written.add(key)
            yield {**row, "id": key, **_with_metadata(row.get("metadata"), metadata)}


def read_otlp(path: Path) -> Iterator[JsonObject]:
    traces: dict[str, list[JsonObject]] = {}
    for document in logs.read_lines(path) if path.suffix == ".jsonl" else [logs.read_json(path)]:
        for span in iterate_spans(document):
            traces.setdefault(span["traceId"], []).append(span)
    if not traces:
        raise ValidationError(f"{path} has no spans", hint="JSON as OTLP's file exporter writes it: resourceSpans")
    for id, spans in traces.items():
        spans.sort(key=lambda span: int(span.get("startTimeUnixNano") or 0))
        conversations = [read_conversation(read_attributes(span)) for span in spans]
        calls = [(question, answers) for question, answers in conversations if question]
        if not calls:
            continue
        answers, tools = calls[-1][1], (read_attributes(span).get("gen_ai.tool.definitions") for span in spans)
        events = [event for span in spans for event in span.get("events") or () if event["name"] == _EVALUATION]
        metadata: JsonObject = {
            "tools": load_json(next(filter(None, tools), None)),
            "answer": answers[-1]["content"] if answers else None,
            "scores": dict(map(_score, map(read_attributes, events))),
        }
        yield {**logs.row_of(id, _opening(calls[0][0])), **_with_metadata(None, metadata)}


def _score(event: JsonObject) -> tuple[str, object]:
    value = event.get("gen_ai.evaluation.score.label", event.get("gen_ai.evaluation.score.value"))
    return str(event["gen_ai.evaluation.name"]), value


def _opening(messages: Iterable[Message]) -> list[Message]:
    return list(takewhile(lambda message: message.get("role") != "assistant", messages))


def _with_metadata(present: object, metadata: JsonObject) -> JsonObject:
    every = {**(present if isinstance(present, dict) else {}), **logs.present(metadata)}
    return {"metadata": every} if every else {}
