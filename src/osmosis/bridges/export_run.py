import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.bridges.table import flat_rollouts, read_dataset
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import CallTokens, Message, Rollout
from osmosis.records.trajectory import trajectory_from_rollout

FileFormat = Literal["inspect", "atif", "jsonl", "csv", "parquet", "huggingface"]
Tool = Literal["mlflow", "tensorboard", "trackio", "wandb", "otlp", "langfuse", "weave"]
ExportFormat = Literal[FileFormat, Tool]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)
TOKENS = ("input_tokens", "output_tokens", "total_tokens")
SAMPLING = ("temperature", "top_p", "max_tokens", "seed")
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
        return write_inspect(journal.rollouts(), plan, read_dataset(plan), output, created_at)
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


def write_inspect(
    rollouts: Iterable[Rollout], plan: EvalPlan, rows: Mapping[str, JsonObject], path: Path, created_at: str
) -> int:
    samples = [_sample(rollout, rows.get(rollout.row_key or "", {})) for rollout in rollouts]
    model = plan.model.name if "/" in plan.model.name else f"{plan.model.kind}/{plan.model.name}"
    names = list(dict.fromkeys(name for sample in samples for name in sample["scores"]))
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    metrics = [{"name": name, "scorer": name, "params": {}, "metrics": _metrics(samples, name)} for name in names]
    usage = {key: sum(sample["output"]["usage"][key] for sample in samples) for key in TOKENS}
    params = {key: value for key, value in plan.model.params.items() if key in SAMPLING}
    completed = sum("error" not in sample for sample in samples)
    document = {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": plan.name,
            "run_id": plan.name,
            "created": created_at,
            "task": plan.agent,
            "task_id": plan.name,
            "task_version": 0,
            "dataset": {"name": plan.dataset, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": model,
            "model_generate_config": params,
            "config": {"epochs": plan.attempts, "epochs_reducer": ["mean"]},
            "packages": {},
            "scorers": [{"name": name} for name in names],
        },
        "plan": {"name": "osmosis", "steps": [], "config": {}},
        "results": {"total_samples": len(samples), "completed_samples": completed, "scores": metrics},
        "stats": {"started_at": created_at, "completed_at": created_at, "model_usage": {model: usage}},
        "samples": samples,
    }
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return len(samples)


def _sample(rollout: Rollout, row: JsonObject) -> JsonObject:
    messages = [_message(message) for message in rollout.messages]
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    model = rollout.model or "unknown"
    tokens = {
        "input_tokens": rollout.usage.prompt_tokens,
        "output_tokens": rollout.usage.completion_tokens,
        "total_tokens": rollout.usage.total_tokens,
    }
    opening = [message for message in messages if message["role"] in ("system", "user")]
    sample: JsonObject = {
        "id": rollout.row_key or rollout.row_index,
        "epoch": rollout.attempt + 1,
        "input": str(row.get("user_prompt") or (opening[0]["content"] if opening else "")),
        "target": str(row.get("ground_truth") or ""),
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": last, "stop_reason": _stop_reason(rollout.finish_reason)}] if last else [],
            "completion": last["content"] if last and isinstance(last["content"], str) else "",
            "usage": tokens,
        },
        "scores": {
            name: {"value": score.value, "explanation": score.reason, "metadata": score.parts or {}}
            for name, score in rollout.scores.items()
            if score.value is not None
        },
        "metadata": row.get("metadata") if isinstance(row.get("metadata"), dict) else {},
        "store": {},
        "events": [],
        "model_usage": {model: tokens},
        "started_at": rollout.started_at.isoformat(),
        "total_time": rollout.duration_ms / 1000,
        "working_time": rollout.duration_ms / 1000,
        "uuid": rollout.rollout_id,
        "attachments": {},
    }
    if rollout.failure is not None:
        trace = rollout.failure.traceback or ""
        sample["error"] = {"message": rollout.failure.message, "traceback": trace, "traceback_ansi": trace}
    return sample


def _stop_reason(reason: str | None) -> str:
    reasons = {"stop", "max_tokens", "model_length", "tool_calls", "content_filter"}
    return reason if reason in reasons else {"length": "max_tokens"}.get(reason or "", "unknown")


def _metrics(samples: Sequence[JsonObject], name: str) -> JsonObject:
    values = [sample["scores"][name]["value"] for sample in samples if name in sample["scores"]]
    return {"mean": {"name": "mean", "value": sum(values) / len(values), "params": {}}} if values else {}


def _message(message: Message) -> JsonObject:
    role = message.get("role")
    content = message.get("content")
    parts = [_part(part) for part in content] if isinstance(content, list) else content or ""
    if reasoning := message.get("reasoning_content"):
        texts = parts if isinstance(parts, list) else [{"type": "text", "text": parts}]
        parts = [{"type": "reasoning", "reasoning": reasoning}, *texts]
    written: JsonObject = {
        "role": role if role in ("system", "user", "assistant", "tool") else "user",
        "content": parts,
    }
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [_call(call) for call in calls]
    if role == "tool":
        written["tool_call_id"] = message.get("tool_call_id")
    return written


def _part(part: JsonObject) -> JsonObject:
    image = part.get("image_url")
    if image is not None:
        return {"type": "image", "image": image.get("url") if isinstance(image, dict) else image}
    return {"type": "text", "text": str(part.get("text", ""))}


def _call(call: JsonObject) -> JsonObject:
    function = call.get("function") or {}
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    written = {"id": call.get("id") or "", "function": function.get("name") or "", "type": "function"}
    if isinstance(arguments, dict):
        return {**written, "arguments": arguments}
    return {**written, "arguments": {}, "parse_error": f"no JSON object: {function.get('arguments')}"}
