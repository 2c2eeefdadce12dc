"""`a2a:URL`: an agent elsewhere, which brings its own model, by the URL of its agent card. Options: `key_env` names the
variable of a bearer token, `user` is the model of the people that rows describe (`SimulatedUser`)."""

# a2a-sdk is in the agent's environment, never where the checker runs.
# mypy: disable-error-code="import-not-found,misc"

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import orjson
from a2a.client import ClientConfig, create_client
from a2a.client.card_resolver import parse_agent_card
from a2a.client.errors import A2AClientError
from a2a.helpers import get_data_parts, get_text_parts, new_text_part
from a2a.types import AgentCard, GetTaskRequest, Message, Part, Role, SendMessageRequest, Task, TaskState
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.errors import LoadError, ModelError
from osmosis.records.run.rollout import Category, Message as ChatMessage
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.chat import text_of
from osmosis.sdk.foreign import ForeignEnvironment, ForeignWorkflow
from osmosis.sdk.simulated_user import SimulatedUser
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflowContext

CARD_S, POLL_S = 30.0, 1.0


class RemoteAgent:
    """One conversation with an agent over A2A: `async with RemoteAgent(url) as agent`."""

    def __init__(self, url: str, *, key_env: str = "", timeout_s: float = 600.0) -> None:
        self._url, self._key_env, self._timeout_s = url, key_env, timeout_s
        self._context_id: str | None = None
        self._task_id: str | None = None

    async def __aenter__(self) -> "RemoteAgent":
        card = await asyncio.to_thread(fetch_card, self._url, self._key_env)
        self._http = httpx.AsyncClient(
            headers=_key_header(self._key_env), timeout=self._timeout_s, trust_env=not is_loopback(self._url)
        )
        self._client = await create_client(card, ClientConfig(streaming=False, httpx_client=self._http))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answer(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Send what was said since its last answer; return its next one. Raise `ModelError` or `RuntimeError`."""
        last = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
        parts = [new_text_part(text_of(message)) for message in messages[last + 1 :]]
        ids = {"context_id": self._context_id, "task_id": self._task_id}
        message = Message(role=Role.ROLE_USER, message_id=uuid4().hex, parts=parts, **ids)
        try:
            (answer,) = [event async for event in self._client.send_message(SendMessageRequest(message=message))]
            if answer.HasField("message"):
                self._context_id = answer.message.context_id or None
                return [{"role": "assistant", "content": _read_parts(answer.message.parts)}]
            task = answer.task
            while task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING):
                await asyncio.sleep(POLL_S)
                task = await self._client.get_task(GetTaskRequest(id=task.id))
        except (A2AClientError, httpx.HTTPError) as error:
            raise ModelError(f"the agent at {self._url}: {error}", category=Category.CONNECTION.value) from error
        text = _read_task(task)
        if task.status.state not in (TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED):
            state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
            raise RuntimeError(f"the agent at {self._url} left its task {state}: {text[:500] or 'no reason'}")
        waits = task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        self._context_id, self._task_id = task.context_id, task.id if waits else None
        return [{"role": "assistant", "content": text}]


@lru_cache(maxsize=8)
def fetch_card(url: str, key_env: str = "") -> AgentCard:
    """Return the card at a URL; raise LoadError, also where it would lead a key to another host."""
    card_url = url if url.endswith(".json") else f"{url.rstrip('/')}{AGENT_CARD_WELL_KNOWN_PATH}"
    hint = "a2a:URL, the address below which /.well-known/agent-card.json is"
    try:
        with httpx.Client(timeout=CARD_S, trust_env=not is_loopback(url)) as client:
            answer = client.get(card_url, headers=_key_header(key_env)).raise_for_status()
        card = parse_agent_card(answer.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise LoadError(f"{card_url} is no agent card: {error}", hint=hint) from error
    addresses = [interface.url for interface in card.supported_interfaces]
    elsewhere = [address for address in addresses if urlsplit(address)[:2] != urlsplit(url)[:2]]
    if key_env and elsewhere:
        raise LoadError(f"the card of {url} leads to {elsewhere[0]}: {key_env} is not sent there")
    return card


class RemoteConfig(AgentWorkflowConfig):
    url: str
    key_env: str = ""
    user: str | None = None


class RemoteWorkflow(ForeignWorkflow[RemoteConfig]):
    async def run(self, ctx: AgentWorkflowContext[RemoteConfig]) -> list[ChatMessage]:
        person = ctx.metadata.get("user")
        async with RemoteAgent(self.config.url, key_env=self.config.key_env) as agent:
            if not person:
                return [*ctx.prompt, *await agent.answer(ctx.prompt)]
            return await SimulatedUser(self.config.user, **person).talk(ctx.prompt, agent.answer)


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    config = RemoteConfig(**{"name": name, "url": name, **options})
    fetch_card(config.url, config.key_env)

    def make_rows() -> Iterator[JsonObject]:
        raise LoadError(f"a2a:{name} brings no rows", hint="-d data.jsonl")

    return ForeignEnvironment(LocalBackend(RemoteWorkflow, config), make_rows)


def _key_header(key_env: str) -> dict[str, str]:
    if not key_env:
        return {}
    if not (key := os.environ.get(key_env)):
        raise LoadError(f"{key_env} is not set", hint=f"export {key_env}=...")
    return {"Authorization": f"Bearer {key}"}


def _read_task(task: Task) -> str:
    texts = [_read_parts(artifact.parts) for artifact in task.artifacts]
    if task.status.state != TaskState.TASK_STATE_COMPLETED or not any(texts):
        return _read_parts(task.status.message.parts)
    return "\n".join(filter(None, texts))


def _read_parts(parts: Sequence[Part]) -> str:
    return "\n".join(get_text_parts(parts) or [orjson.dumps(part).decode() for part in get_data_parts(parts)])
