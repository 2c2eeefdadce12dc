"""A Tinker server without a model, for tests of whoever trains on one: the real protocol, a policy of one choice.

It knows a few answers, as token ids, and how likely each is; `importance_sampling` moves that by the gradient of its
loss, so that what is rewarded becomes likelier. States and sampling weights are kept under `tinker://` names. Every
request is in `requests`, by path.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from osmosis.base.jsonable import JsonObject

MODEL = "fake/model"
PROTOBUF = "application/x-protobuf"


@dataclass(slots=True)
class _Weights:
    """Log-odds of the answers, and what was added up for the next optimizer step."""

    logits: list[float]
    gradient: list[float] = field(default_factory=list)

    def chances(self, temperature: float = 1.0) -> list[float]:
        top = max(self.logits)
        odds = [math.exp((value - top) / max(temperature, 1e-3)) for value in self.logits]
        return [odd / sum(odds) for odd in odds]


class FakeTinker:
    """`async with FakeTinker(answers) as server: ... server.url`."""

    def __init__(self, answers: Sequence[Sequence[int]], *, seed: int = 0) -> None:
        self.answers = [list(answer) for answer in answers]
        self.requests: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        """The API keys that came."""
        self.losses: list[JsonObject] = []
        """The bodies of `forward_backward`."""
        self.url = ""
        self._draw = random.Random(seed)
        self._models: dict[str, _Weights] = {}
        self._kept: dict[str, list[float]] = {}
        self._results: dict[str, JsonObject] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeTinker:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/api/v1/healthz", self._healthz)
        app.router.add_post("/api/v1/{name:.+}", self._post)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def chances(self) -> list[float]:
        """Of the answers, by the newest weights."""
        return list(self._models.values())[-1].chances()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _post(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.requests[name] += 1
        self.keys.add(request.headers.get("X-API-Key"))
        if request.content_type == PROTOBUF:  # clients from 0.25 on, for this request
            body = _read_forward_backward(await request.read())
        else:
            body = await request.json() if request.can_read_body else {}
        now: dict[str, Callable[[JsonObject], JsonObject]] = {
            "client/config": lambda _: {},
            "create_session": lambda _: {"type": "create_session", "session_id": "session"},
            "session_heartbeat": lambda _: {"type": "session_heartbeat"},
            "telemetry": lambda _: {"status": "accepted"},
            "get_info": self._info,
            "weights_info": lambda _: {"base_model": MODEL, "is_lora": True, "lora_rank": 16},
            "create_sampling_session": self._sampling_session,
            "retrieve_future": lambda body: self._results[body["request_id"]],
        }
        later: dict[str, Callable[[JsonObject], JsonObject]] = {
            "create_model": self._create_model,
            "asample": self._sample,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load,
        }
        if name in now:
            answer = now[name](body)
            is_packed = "sequences" in answer or "loss_fn_outputs" in answer
            if is_packed and request.headers.get("Accept") == PROTOBUF:
                return web.Response(body=_write_answer(answer), content_type=PROTOBUF)
            return web.json_response(answer)
        if name not in later:
            return web.json_response({"error": f"no {name} here"}, status=404)
        number = f"r{len(self._results)}"
        self._results[number] = later[name](body)
        return web.json_response({"request_id": number, "model_id": body.get("model_id")})

    def _info(self, body: JsonObject) -> JsonObject:
        data = {"model_name": MODEL, "arch": "fake", "tokenizer_id": MODEL}
        return {"type": "get_info", "model_id": body["model_id"], "model_data": data, "model_name": MODEL}

    def _create_model(self, body: JsonObject) -> JsonObject:
        number = f"model{len(self._models)}"
        self._models[number] = _Weights([0.0] * len(self.answers), [0.0] * len(self.answers))
        return {"type": "create_model", "model_id": number}

    def _sampling_session(self, body: JsonObject) -> JsonObject:
        number = f"sampling{len(self._kept)}"
        self._kept[number] = list(self._kept[body["model_path"]])
        return {"type": "create_sampling_session", "sampling_session_id": number}

    def _sample(self, body: JsonObject) -> JsonObject:
        weights = _Weights(self._kept[body["sampling_session_id"]])
        chances = weights.chances(body["sampling_params"]["temperature"])
        chosen = self._draw.choices(range(len(chances)), chances)[0]
        tokens = self.answers[chosen]
        logprobs = [math.log(chances[chosen]), *[0.0] * (len(tokens) - 1)]
        found = {"tokens": tokens, "logprobs": logprobs, "stop_reason": "stop"}
        return {"type": "sample", "sequences": [found]}

    def _forward_backward(self, body: JsonObject) -> JsonObject:
        self.losses.append(body["forward_backward_input"])
        weights = self._models[body["model_id"]]
        chances = weights.chances()
        loss, outputs = 0.0, []
        for datum in body["forward_backward_input"]["data"]:
            inputs = datum["loss_fn_inputs"]
            targets, gains, before = (inputs[key]["data"] for key in ("target_tokens", "advantages", "logprobs"))
            at = next((at for at, gain in enumerate(gains) if gain), None)
            outputs.append({"logprobs": {"data": [0.0] * len(targets), "dtype": "float32", "shape": [len(targets)]}})
            if at is None:
                continue
            chosen = next(n for n, answer in enumerate(self.answers) if targets[at : at + len(answer)] == answer)
            ratio = chances[chosen] / math.exp(before[at])
            loss -= ratio * sum(gains)
            for n, chance in enumerate(chances):
                weights.gradient[n] += sum(gains) * ratio * ((n == chosen) - chance)
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": {"loss:sum": loss}}

    def _optim_step(self, body: JsonObject) -> JsonObject:
        weights = self._models[body["model_id"]]
        rate = body["adam_params"]["learning_rate"]
        norm = math.sqrt(sum(value * value for value in weights.gradient)) or 1.0
        weights.logits = [a + rate * b / norm for a, b in zip(weights.logits, weights.gradient, strict=True)]
        weights.gradient = [0.0] * len(weights.logits)
        return {}

    def _save(self, body: JsonObject) -> JsonObject:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self._kept[path] = list(self._models[body["model_id"]].logits)
        return {"type": "save_weights", "path": path}

    def _save_for_sampler(self, body: JsonObject) -> JsonObject:
        logits = list(self._models[body["model_id"]].logits)
        if body.get("path"):
            path = f"tinker://{body['model_id']}/sampler_weights/{body['path']}"
            self._kept[path] = logits
            return {"type": "save_weights_for_sampler", "path": path}
        number = f"sampling{len(self._kept)}"
        self._kept[number] = logits
        return {"type": "save_weights_for_sampler", "path": None, "sampling_session_id": number}

    def _load(self, body: JsonObject) -> JsonObject:
        self._models[body["model_id"]].logits = list(self._kept[body["path"]])
        return {"type": "load_weights", "path": body["path"]}


def _read_forward_backward(data: bytes) -> JsonObject:
    """The JSON that clients before 0.25 send."""
    sequences = []
    fields = list(_fields(data))
    for _, datum in ((number, value) for number, value in fields if number == 3):
        inputs: JsonObject = {}
        for number, entry in _fields(_bytes(datum)):
            if number == 2:
                named = dict(_fields(_bytes(entry)))
                tensor = dict(_fields(_bytes(named[2])))
                values = array("f" if tensor[3] == 1 else "q", _bytes(tensor[1]))
                inputs[_bytes(named[1]).decode()] = {"data": list(values)}
        sequences.append({"loss_fn_inputs": inputs})
    return {"model_id": _bytes(dict(fields)[1]).decode(), "forward_backward_input": {"data": sequences}}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a protobuf message, in order: https://protobuf.dev/programming-guides/encoding."""
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value

    while at < len(data):
        number, kind = divmod(read_varint(), 8)
        if kind == 0:
            yield number, read_varint()
        else:
            size = read_varint() if kind == 2 else 8 if kind == 1 else 4
            yield number, data[at : at + size]
            at += size


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _write_answer(answer: JsonObject) -> bytes:
    """Samples, or what a forward and backward pass gave, for clients that take no JSON."""
    if "sequences" in answer:
        return b"".join(
            _field(1, _field(2, array("i", each["tokens"]).tobytes()) + _field(3, _floats(each["logprobs"])))
            for each in answer["sequences"]
        )
    tensors = [output["logprobs"]["data"] for output in answer["loss_fn_outputs"]]
    ends = [4 * sum(map(len, tensors[:count])) for count in range(len(tensors) + 1)]
    data = _floats([value for tensor in tensors for value in tensor])
    batched = _field(1, data) + _field(2, array("q", ends).tobytes()) + bytes([3 << 3, 1])
    record = _field(2, _field(1, b"logprobs") + _field(2, batched)) + bytes([3 << 3]) + _varint(len(tensors))
    metrics = b"".join(
        _field(3, _field(1, name.encode()) + bytes([2 << 3 | 1]) + array("d", [value]).tobytes())
        for name, value in answer["metrics"].items()
    )
    return _field(1, b"ArrayRecord") + _field(2, record) + metrics


def _floats(values: Sequence[float]) -> bytes:
    return array("f", values).tobytes()


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
