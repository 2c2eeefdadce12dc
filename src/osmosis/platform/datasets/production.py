"""Calls of models in production: stored once, without the workspace's secrets, labelled, and made rows of datasets."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from uuid import uuid4

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session
from starlette.background import BackgroundTask
from starlette.responses import Response, StreamingResponse

from osmosis.base.jsonable import JsonObject, to_valid_text
from osmosis.base.redact import Redactor
from osmosis.bridges.spans import TracedCall
from osmosis.dialects import EndpointError, dialect_of_path
from osmosis.errors import NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.datasets import ingest
from osmosis.platform.db import take_turn
from osmosis.platform.models.inference import InferenceTarget
from osmosis.platform.workspaces import audit, secrets
from osmosis.records.api.datasets import CallJudgement

log = logging.getLogger("osmosis.platform.production")

MOST_BYTES, MOST_STREAMED = 2**20, 2**24
COUNTS = ("/count_tokens", "/input_tokens", ":countTokens")  # Ends of the paths of questions that no model answers
CALL = tables.ProductionCall


def store(platform: Platform, workspace_id: str, source: str, calls: Iterable[TracedCall]) -> int:
    rows, refused = {}, 0
    with platform.db.write() as session:
        redactor = Redactor(secrets.list_values(session, platform.vault, workspace_id))
        for call in calls if platform.settings.keep_calls_days != 0 else ():
            texts = map(redactor.text, (call.id, call.model, call.answer))
            id_, model, answer = (to_valid_text(text).replace("\0", "") for text in texts)
            messages = redactor.data(call.messages)
            if len(orjson.dumps(messages)) + len(answer) > MOST_BYTES:
                refused += 1
                continue
            rows[id_] = CALL(workspace_id=workspace_id, external_id=id_, source=source, model=model, answer=answer)
            rows[id_].messages = messages
        take_turn(session, f"production of {workspace_id}")
        stored = sa.select(CALL.external_id).where(CALL.workspace_id == workspace_id, CALL.external_id.in_(rows))
        present = set(session.scalars(stored))
        session.add_all(row for id_, row in rows.items() if id_ not in present)
    return refused


def recorded(platform: Platform, target: InferenceTarget, path: str, question: bytes, answer: Response) -> Response:
    """Return a deployment's answer; of a call in production it is stored once it was sent."""
    if not target.workspace_id or answer.status_code != 200 or path.endswith(COUNTS):
        return answer
    pieces = [] if isinstance(answer, StreamingResponse) else [bytes(answer.body)]
    if isinstance(answer, StreamingResponse):
        answer.body_iterator = _tee(answer.body_iterator, pieces)
    answer.background = BackgroundTask(_store_answer, platform, target, path, question, pieces)
    return answer


async def _tee(source: AsyncIterable[str | bytes | memoryview], pieces: list[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for piece in source:
        assert isinstance(piece, bytes)
        size += len(piece)
        if size <= MOST_STREAMED:
            pieces.append(piece)
        else:  # it may never end, and is not stored
            pieces.clear()
        yield piece


def _store_answer(platform: Platform, target: InferenceTarget, path: str, question: bytes, pieces: list[bytes]) -> None:
    try:
        call = dialect_of_path(path).parse(orjson.loads(question))
        id_, text = read_answer(b"".join(pieces))
        store(platform, target.workspace_id, "deployment", [TracedCall(id_, target.model, call.messages, text)])
    except (EndpointError, OsmosisError, ValueError, AttributeError) as error:
        log.warning("a call of deployment %s was not stored: %s", target.model, error)


def read_answer(body: bytes) -> tuple[str, str]:
    events = [line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:")]
    documents = [orjson.loads(event) for event in events if event != b"[DONE]"] if events else [orjson.loads(body)]
    id_, texts = "", list[object]()
    for document in documents:
        inner = document.get("message") or document.get("response") or {}
        id_ = id_ or document.get("id") or document.get("responseId") or inner.get("id") or ""
        choices = [each.get("message") or each.get("delta") or {} for each in document.get("choices", ())]
        texts += [choice.get("content") for choice in choices]
        delta = document.get("delta")
        texts.append(delta.get("text") if isinstance(delta, dict) else delta)
        contents = [item.get("content") for item in (document, *document.get("output", ()))]
        contents += [each.get("content", {}).get("parts") for each in document.get("candidates", ())]
        texts += [part.get("text") for content in contents if isinstance(content, list) for part in content]
    return str(id_ or uuid4().hex), "".join(text for text in texts if isinstance(text, str))


def select_calls(workspace: tables.Workspace, label: str = "") -> sa.Select[tables.ProductionCall]:
    conditions = [CALL.workspace_id == workspace.id, *([CALL.label == label] if label else [])]
    return sa.select(CALL).where(*conditions).order_by(CALL.created_at.desc(), CALL.id)


def find(session: Session, workspace: tables.Workspace, call_id: str) -> tables.ProductionCall:
    query = select_calls(workspace).where(sa.or_(CALL.id == call_id, CALL.external_id == call_id))
    if (call := session.scalars(query).first()) is None:
        raise NotFound(f"no call {call_id!r} in workspace {workspace.name!r}", hint="it may be too old to be kept")
    return call


def judge(
    platform: Platform, workspace: tables.Workspace, actor: audit.Actor, call_id: str, judgement: CallJudgement
) -> tables.ProductionCall:
    """Label a call, and make it a row of the dataset that is named, which begins with it where there is none."""
    with platform.db.write() as session:
        call = find(session, workspace, call_id)
        call.label = judgement.label
    if name := judgement.dataset:
        facts = {"model": call.model, "answer": call.answer, "label": call.label, "time": call.created_at.isoformat()}
        row: JsonObject = {"id": call.external_id, "messages": call.messages, "ground_truth": judgement.ground_truth}
        ingest.append_row(platform, workspace, actor, name, {**row, "metadata": {"production": facts}})
        with platform.db.write() as session:
            call = find(session, workspace, call_id)
            call.dataset = name
    return call
