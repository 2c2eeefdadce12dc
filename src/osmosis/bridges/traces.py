"""Rows of what an agent was asked: the traces of an OTLP file (GenAI conventions, JSON), the rollouts of a local run.
A row has the messages before the first answer; its metadata has the tools, the answer, scores and labels."""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.bridges.spans import iterate_spans, load_json, read_attributes, read_conversation
from osmosis.bridges.table import read_dataset
from osmosis.engine.journal import StoredRollouts
from osmosis.errors import ValidationError
from osmosis.records.run.annotations import Annotation, keep_newest
from osmosis.records.run.rollout import Message, Rollout

_EVALUATION = "gen_ai.evaluation.result"


def read_journal(folder: Path) -> Iterator[JsonObject]:
    stored = StoredRollouts(folder)
    rows, labels, written = read_dataset(stored.plan()), dict[str, dict[str, str]](), set[str]()
    file = folder / "annotations.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    for note in keep_newest(map(Annotation.model_validate_json, lines)):
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
