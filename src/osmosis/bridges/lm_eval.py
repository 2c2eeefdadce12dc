"""Samples of lm-evaluation-harness, as --log_samples writes them; each filter is a run of its own. Log-likelihoods of
choices are not read, but kept in `info`."""

import re
from collections.abc import Iterator
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Score

NAME = "lm_eval"
_FILE = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl\Z")


def is_log(path: Path) -> bool:
    if path.is_dir():
        return any(path.rglob("samples_*.jsonl"))
    if path.suffix != ".jsonl":
        return False
    return {"doc_id", "doc", "resps", "filtered_resps"} <= set(next(iter(logs.read_lines(path)), {}))


def read(path: Path) -> list[logs.LoggedRun]:
    files = sorted(path.rglob("samples_*.jsonl")) if path.is_dir() else [path]
    return [run for file in files for run in _read_file(file)]


def _read_file(file: Path) -> Iterator[logs.LoggedRun]:
    named = _FILE.search(file.name)
    task = named["task"] if named else file.stem
    path = file.with_name(f"results_{named['time'] if named else ''}.json")
    results = logs.read_json(path) if path.exists() else {}
    model = str(results.get("model_name") or results.get("config", {}).get("model") or file.parent.name)
    metrics: dict[str, list[str]] = {}
    for line in logs.read_lines(file):
        metrics.setdefault(line.get("filter") or "none", line.get("metrics") or [])
    if not metrics:
        raise ValidationError(f"{file} is empty")
    for name in metrics:
        suffix = name if len(metrics) > 1 else ""
        yield logs.LoggedRun(
            name=logs.run_name(task, model.rpartition("/")[2], suffix),
            agent=f"{NAME}:{task}",
            model=model,
            rollouts=_convert(file, name),
            scores=metrics[name],
            params=results.get("configs", {}).get(task, {}).get("generation_kwargs") or {},
            facts={
                "packages": {NAME: results.get("lm_eval_version")},
                "filter": name,
                "versions": results.get("versions", {}).get(task),
            },
        )


def _convert(file: Path, name: str) -> Iterator[logs.LoggedRollout]:
    for line in logs.read_lines(file):
        if (line.get("filter") or "none") != name:
            continue
        id, prompt = line["doc_id"], _prompt(line)
        answers = line["resps"][0] if line.get("resps") else []
        is_text = bool(answers) and isinstance(answers[0], str)
        scores = {
            metric: Score(value, name=metric)
            for metric in line.get("metrics") or ()
            if (value := logs.numeric(line.get(metric))) is not None
        }
        info: JsonObject = {"filtered": line.get("filtered_resps")}
        if not is_text:
            info["responses"] = line.get("resps")
        row = logs.row_of(id, prompt, line.get("target"), {"doc": line.get("doc")})
        messages = logs.conversation(prompt, answers[0] if is_text else None)
        yield logs.logged(row, messages, scores, rollout_id=f"{name}-{id}", info=info)


def _prompt(line: JsonObject) -> str | list[JsonObject]:
    arguments = line.get("arguments") or {}
    first = next(iter(arguments.values()), {}) if isinstance(arguments, dict) else {"arg_0": (arguments[0] or [""])[0]}
    sent = first.get("arg_0", "")
    text = str(sent[0]) if isinstance(sent, list) and sent else str(sent)
    if text.startswith('[{"role"'):
        messages: list[JsonObject] = orjson.loads(text)
        return messages
    return text
