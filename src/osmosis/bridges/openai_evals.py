"""Record files of OpenAI evals: JSONL with a `spec` line, events, and a `final_report` line. Read: `sampling` (prompt
and answer), `match` and `metrics` events. Not read: `raw_sample`, function calls."""

from collections.abc import Iterator
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Score

NAME = "openai_evals"


def is_log(path: Path) -> bool:
    return path.suffix == ".jsonl" and "completion_fns" in (next(iter(logs.read_lines(path)), {}).get("spec") or {})


def read(path: Path) -> list[logs.LoggedRun]:
    samples: dict[str, dict[str, list[JsonObject]]] = {}
    spec: JsonObject = {}
    for line in logs.read_lines(path):
        if "spec" in line:
            spec = line["spec"]
        elif "sample_id" in line:
            events = samples.setdefault(str(line["sample_id"]), {})
            events.setdefault(line["type"], []).append(line.get("data") or {})
    if not samples:
        raise ValidationError(f"{path} has no samples of OpenAI evals")
    name, model = str(spec.get("eval_name") or path.stem), str((spec.get("completion_fns") or ["unknown"])[0])
    measures = {measure: None for events in samples.values() for data in events.get("metrics", ()) for measure in data}
    has_match = any("match" in events for events in samples.values())
    return [
        logs.LoggedRun(
            name=logs.run_name(name.partition(".")[0], model.rpartition("/")[2]),
            agent=f"{NAME}:{name}",
            model=model,
            rollouts=_convert(samples),
            scores=[*(["match"] if has_match else []), *measures],
            created_at=logs.parse_time(spec.get("created_at")),
            facts={"run_id": spec.get("run_id"), "base_eval": spec.get("base_eval")},
        )
    ]


def _convert(samples: dict[str, dict[str, list[JsonObject]]]) -> Iterator[logs.LoggedRollout]:
    for id, events in samples.items():
        sampling = (events.get("sampling") or [{}])[-1]
        prompt, answers = sampling.get("prompt") or "", sampling.get("sampled") or []
        scores: dict[str, Score] = {}
        target = None
        for data in events.get("match", ()):
            target = data.get("expected")
            scores["match"] = Score(bool(data.get("correct")), metadata={"picked": data.get("picked")}, name="match")
        for data in events.get("metrics", ()):
            for name, value in data.items():
                if (number := logs.numeric(value)) is not None:
                    scores[name] = Score(number, name=name)
        errors = events.get("error")
        failure = logs.agent_failure(errors[0].get("message") or errors[0]) if errors else None
        messages = logs.conversation(prompt, answers[0] if answers else None)
        usage = logs.usage_of(sampling.get("usage") or {}, "prompt_tokens", "completion_tokens")
        yield logs.logged(logs.row_of(id, prompt, target), messages, scores, failure, rollout_id=id, usage=usage)
