"""Logs of inspect_ai: `.eval` (a zip of zstd members) and `.json`, log schema 2, also while a run still writes them.
Read: samples, epochs, scores (C, I, P and N are 1, 0, 0.5 and 0), errors, limits, tool calls, usage, attachments. Not
read: score reducers, transcripts of sub-agents, stores."""

import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.bridges.logs import LoggedRollout, LoggedRun
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Failure, Message, ModelCall, Score, Usage

NAME = "inspect_ai"
ZSTD = 93
LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
LIMITS = {
    "message": "max_messages",
    "token": "max_tokens",
    "time": "max_time",
    "working": "max_time",
    "cost": "max_cost",
}
ATTACHMENT = "attachment://"


class Tokens(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_read: int | None = None
    input_tokens_cache_write: int | None = None
    reasoning_tokens: int | None = None
    total_cost: float | None = None

    def usage(self) -> Usage:
        cached, written = self.input_tokens_cache_read or 0, self.input_tokens_cache_write or 0
        return Usage(
            prompt_tokens=self.input_tokens + cached + written,
            completion_tokens=self.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=self.reasoning_tokens or 0,
            cost_usd=self.total_cost,
        )


class Choice(msgspec.Struct):
    stop_reason: str | None = None


class Output(msgspec.Struct):
    model: str | None = None
    choices: list[Choice] = []
    usage: Tokens | None = None
    time: float | None = None


class Event(msgspec.Struct):
    event: str = ""


class ModelEvent(msgspec.Struct):
    model: str | None = None
    output: Output | None = None
    error: str | None = None
    retries: int | None = None
    working_start: float | None = None
    working_time: float | None = None
    tools: list[JsonObject] | None = None


class SampleError(msgspec.Struct):
    message: str = ""
    traceback: str | None = None


class SampleLimit(msgspec.Struct):
    type: str = ""


class SampleScore(msgspec.Struct):
    value: object = None
    answer: str | None = None
    explanation: str | None = None
    metadata: JsonObject | None = None


class Sample(msgspec.Struct):
    """The members of a logged sample that a rollout needs; msgspec skips the rest, which is most of a log."""

    id: int | str
    epoch: int
    input: str | list[JsonObject]
    target: str | list[str] = ""
    messages: list[JsonObject] = []
    output: Output = msgspec.field(default_factory=Output)
    scores: dict[str, SampleScore] | None = None
    metadata: JsonObject = {}
    events: list[msgspec.Raw] = []
    model_usage: dict[str, Tokens] = {}
    started_at: str | None = None
    total_time: float | None = None
    working_time: float | None = None
    uuid: str | None = None
    error: SampleError | None = None
    limit: SampleLimit | None = None
    attachments: dict[str, str] = {}


class Scorer(msgspec.Struct):
    name: str


class Spec(msgspec.Struct):
    task: str
    model: str
    created: str | None = None
    task_version: int | str | None = None
    task_args: JsonObject = {}
    model_generate_config: JsonObject = {}
    scorers: list[Scorer] | None = None
    packages: dict[str, str] = {}
    revision: JsonObject | None = None


class Header(msgspec.Struct):
    eval: Spec
    version: int = 2
    status: str = "started"


class JsonLog(Header):
    samples: list[msgspec.Raw] | None = None


_decode_sample = msgspec.json.Decoder(Sample).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_model_event = msgspec.json.Decoder(ModelEvent).decode


def is_log(path: Path) -> bool:
    head = logs.head_of(path)
    return path.suffix == ".eval" or (b'"eval"' in head and (b'"task_id"' in head or b'"eval_id"' in head))


def read(path: Path) -> list[LoggedRun]:
    """Return the run of a log; its samples are read when they are iterated. Raise ValidationError."""
    try:
        if path.suffix == ".eval":
            header, samples = _read_zip(path)
        else:
            log = msgspec.json.decode(path.read_bytes(), type=JsonLog)
            header, samples = log, log.samples or []
    except (msgspec.MsgspecError, zipfile.BadZipFile, KeyError) as error:
        raise ValidationError(f"{path} is not a log of inspect_ai: {error}") from error
    if header.version > 2:
        raise ValidationError(f"{path} has log schema {header.version}; this version reads schema 2 and older")
    spec = header.eval
    scorers = [scorer.name.rpartition("/")[2] for scorer in spec.scorers or ()]
    facts = {"status": header.status, "task_version": spec.task_version, "task_args": spec.task_args}
    facts |= {"packages": spec.packages, "revision": spec.revision}
    return [
        LoggedRun(
            name=logs.run_name(spec.task.rpartition("/")[2], spec.model.rpartition("/")[2]),
            agent=f"{NAME}:{spec.task}",
            model=spec.model,
            rollouts=_convert_all(path, samples, scorers),
            scores=scorers,
            created_at=logs.parse_time(spec.created),
            params={key: value for key, value in spec.model_generate_config.items() if value is not None},
            facts={key: value for key, value in facts.items() if value},
        )
    ]


def _read_zip(path: Path) -> tuple[Header, Iterable[bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
    # A log that is still written has no header yet, but its start.
    member = members.get("header.json") or members["_journal/start.json"]
    samples = (read_member(path, info) for name, info in members.items() if name.startswith("samples/"))
    return msgspec.json.decode(read_member(path, member), type=Header), samples


def read_member(path: Path, member: zipfile.ZipInfo) -> bytes:
    """Return one member's content. Python's zipfile reads zstd from 3.14 on; until then Arrow does."""
    if member.compress_type != ZSTD:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(30)
        if header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile(f"{member.filename} has no local header")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(name_length + extra_length, 1)
        packed = file.read(member.compress_size)
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            return bytes(stream.read())
    except OSError as error:
        raise zipfile.BadZipFile(f"{member.filename} is damaged: {error}") from error


def _convert_all(path: Path, samples: Iterable[bytes | msgspec.Raw], scorers: Sequence[str]) -> Iterator[LoggedRollout]:
    for number, raw in enumerate(samples):
        try:
            yield _convert(_decode_sample(raw), scorers)
        except msgspec.MsgspecError as error:
            raise ValidationError(f"{path}: sample {number} cannot be read: {error}") from error


def _convert(sample: Sample, scorers: Sequence[str]) -> LoggedRollout:
    failure = logs.agent_failure(sample.error.message, sample.error.traceback) if sample.error else None
    scores = _scores(sample, scorers, failure)
    events = [_decode_model_event(raw) for raw in sample.events if _decode_event(raw).event == "model"]
    usage = sum((tokens.usage() for tokens in sample.model_usage.values()), Usage())
    messages = [_message(message, sample.attachments) for message in sample.messages]
    choice = sample.output.choices[0].stop_reason if sample.output.choices else None
    seconds = sample.working_time if sample.working_time is not None else sample.total_time
    tools = next((event.tools for event in reversed(events) if event.tools), None)
    prompt = sample.input if isinstance(sample.input, str) else [_message(m, sample.attachments) for m in sample.input]
    if isinstance(prompt, str):
        prompt = sample.attachments.get(prompt.removeprefix(ATTACHMENT), prompt)
    return logs.logged(
        logs.row_of(sample.id, prompt, sample.target, sample.metadata),
        messages,
        scores,
        failure,
        rollout_id=sample.uuid or f"{sample.id}-{sample.epoch}",
        attempt=sample.epoch - 1,
        tools=[_tool(tool) for tool in tools] if tools else None,
        finish_reason=LIMITS.get(sample.limit.type, "limit") if sample.limit else choice,
        usage=usage,
        calls=[_call(event) for event in events if event.output is not None],
        num_tool_calls=logs.tool_calls(messages),
        duration_ms=1000 * (seconds or 0.0),
        model=sample.output.model,
        **({"started_at": started} if (started := logs.parse_time(sample.started_at)) else {}),
    )


def _scores(sample: Sample, scorers: Sequence[str], failure: Failure | None) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    for name, score in (sample.scores or {}).items():
        values = score.value if isinstance(score.value, dict) else {"": score.value}
        for key, value in values.items():
            full = f"{name}.{key}" if key else name
            number = LETTERS.get(value) if isinstance(value, str) else logs.numeric(value)
            if number is not None:
                details = {"answer": score.answer, **(score.metadata or {})}
                metadata = {key: detail for key, detail in details.items() if detail is not None}
                scores[full] = Score(number, score.explanation, metadata or None, name=full)
    if scores and failure is None:
        for name in scorers:
            if not any(full == name or full.startswith(f"{name}.") for full in scores):
                scores[name] = logs.unscored(name, NAME)
    return scores


def _call(event: ModelEvent) -> ModelCall:
    output = event.output or Output()
    return ModelCall(
        started_ms=1000 * (event.working_start or 0.0),
        duration_ms=1000 * (event.working_time or output.time or 0.0),
        usage=output.usage.usage() if output.usage else Usage(),
        finish_reason=output.choices[0].stop_reason if output.choices else None,
        model=output.model or event.model,
        retries=event.retries or 0,
        error=event.error,
    )


def _message(message: JsonObject, attachments: dict[str, str]) -> Message:
    content, reasoning = _content(message.get("content"), attachments)
    plain: Message = {"role": message.get("role", "user"), "content": content}
    if reasoning:
        plain["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        arguments = [msgspec.json.encode(_resolve(call.get("arguments") or {}, attachments)).decode() for call in calls]
        plain["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": {"name": call.get("function"), "arguments": text}}
            for call, text in zip(calls, arguments, strict=True)
        ]
    if plain["role"] == "tool":
        plain["tool_call_id"] = message.get("tool_call_id")
        if error := message.get("error"):
            plain["content"] = content or str(error.get("message") if isinstance(error, dict) else error)
    return plain


def _content(content: object, attachments: dict[str, str]) -> tuple[str | list[JsonObject], str]:
    if not isinstance(content, list):
        return str(_resolve(content or "", attachments)), ""
    parts: list[JsonObject] = []
    reasoning: list[str] = []
    for part in content:
        kind = part.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": _resolve(part.get("text", ""), attachments)})
        elif kind == "reasoning":
            reasoning.append(str(_resolve(part.get("reasoning") or part.get("summary") or "", attachments)))
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _resolve(part.get("image"), attachments)}})
        else:
            parts.append({"type": "text", "text": f"[{kind}]"})
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return ("\n".join(texts) if len(texts) == len(parts) else parts), "\n".join(reasoning)


def _resolve(value: object, attachments: dict[str, str]) -> object:
    if isinstance(value, str):
        return attachments.get(value.removeprefix(ATTACHMENT), value) if value.startswith(ATTACHMENT) else value
    if isinstance(value, dict):
        return {key: _resolve(item, attachments) for key, item in value.items()}
    return [_resolve(item, attachments) for item in value] if isinstance(value, list) else value


def _tool(tool: JsonObject) -> JsonObject:
    return {"type": "function", "function": {key: tool.get(key) for key in ("name", "description", "parameters")}}
