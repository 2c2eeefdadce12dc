import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from osmosis.errors import ModelError, ValidationError
from osmosis.records.base import Record
from osmosis.records.run.rollout import Category
from osmosis.training.protocol import messages

EVENT_WAIT_S = 20.0
START_WAIT_S = 600.0
_LINE_LIMIT = 64 * 1024 * 1024


class TrainerClient:
    """`async with TrainerClient(socket) as trainer: ...`; safe for concurrent requests on one event loop."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "TrainerClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def wait_up(self, *, timeout_s: float = START_WAIT_S) -> messages.TrainerHealth:
        """Return its health as soon as it answers at all (the model may still be loading)."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                return await self.health()
            except ModelError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def health(self) -> messages.TrainerHealth:
        async with self._request("GET", "/health") as response:
            return messages.TrainerHealth.model_validate_json(await response.read())

    async def stream(
        self, request: messages.SampleRequest
    ) -> AsyncGenerator[messages.SampleDelta | messages.SampledAnswer, None]:
        """Yield pieces, the whole answer last. Raise `ModelError`; closing it frees the request in the trainer."""
        async with self._request("POST", "/sample", request) as response:
            async for raw in _lines(response):
                line = messages.SampleLine.model_validate_json(raw)
                if line.error is not None:
                    raise ModelError(line.error.message, category=line.error.category)
                if line.delta is not None:
                    yield line.delta
                if line.done is not None:
                    yield line.done
                    return
        raise _broken("the trainer ended its answer before it was complete")

    async def events(self, after: int = 0) -> AsyncIterator[messages.Numbered]:
        """Iterate over every event after that number; each is acknowledged when the next one is requested."""
        while True:
            path = f"/events?after={after}&wait={EVENT_WAIT_S}"
            async with self._request("GET", path) as response:
                numbered = [messages.Numbered.model_validate_json(raw) async for raw in _lines(response)]
            for event in numbered:
                yield event
                after = event.number

    async def acknowledge(self, number: int) -> None:
        """Acknowledge every event up to this one; do nothing when the trainer is gone."""
        with suppress(ModelError):
            async with self._request("GET", f"/events?after={number}&wait=0"):
                pass

    async def send_batch(self, batch: messages.Batch) -> None:
        async with self._request("POST", "/batch", await asyncio.to_thread(batch.to_bytes)):
            pass

    async def stop(self) -> None:
        async with self._request("POST", "/stop"):
            pass

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Record | bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.UnixConnector(path=str(self._socket), limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20)
        data = body.model_dump_json().encode() if isinstance(body, Record) else body
        try:
            async with self._session.request(method, f"http://trainer{path}", data=data) as response:
                if response.status >= 400:
                    raise ValidationError(f"the trainer rejects {response.url.path}: {(await response.text())[:2000]}")
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(f"the trainer does not answer: {error}") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        if len(rest) > _LINE_LIMIT:
            raise _broken(f"the trainer sent a line of more than {_LINE_LIMIT >> 20} MiB")
        for line in lines:
            if line:
                yield line
    if rest:
        yield rest


def _broken(message: str) -> ModelError:
    return ModelError(message, category=Category.CONNECTION.value)
