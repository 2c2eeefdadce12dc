"""`POST /rollout`, its status, result and cancellation: generations 0.3 and 0.4 of the protocol, on one queue.
A request with callback URLs is called back; one without is polled under a lease that each read renews.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response

from osmosis.records.base import Record, utc_now
from osmosis.records.wire import (
    LEASE_HEADER,
    CancelReply,
    CancelRequest,
    CompletionCallback,
    GraderCallback,
    RolloutAccepted,
    RolloutInit,
    RolloutState,
    RolloutState04,
    ServerHealth,
    ServerLifecycle,
    StatusReply,
)
from osmosis.records.wire_checks import check_rollout_id
from osmosis.serve.endpoints import DeclaredEndpoint

from .delivery import Listener, Post
from .direct import RolloutApp
from .http import HttpProblem, parse, read_body, reply, reply_json, wire_text
from .lifetime import ServerRuntime
from .queue import NO_ERRORS, AcceptedRollout, RolloutOutcome, from_execution
from .traces import EndedRollout, TraceFolder, TrajectoryWriter

if TYPE_CHECKING:
    from osmosis.sdk.backend import ExecutionResult


@runtime_checkable
class Backend(Protocol):
    """What the server runs rollouts on; `osmosis.sdk.LocalBackend` is one."""

    @property
    def max_concurrent(self) -> int | None: ...

    async def execute(
        self, init: RolloutInit, *, on_state: Callable[[RolloutState], None] | None = None
    ) -> ExecutionResult: ...

    # A backend may also have `max_queue_depth` (rollouts that may wait; None: the server's own limit), `overhead_s`
    # (seconds a rollout may take beyond its own time limits) and `aclose()` (returns when it has cleaned up).


START = DeclaredEndpoint(
    "POST",
    "/rollout",
    "Start a rollout: 0.3 with callback URLs (202 `{}`), else 0.4 and then polled",
    RolloutInit,
    RolloutAccepted,
    202,
    errors=(401, 409, 413, 422, 429, 503),
)
RESULT = DeclaredEndpoint(
    "GET",
    "/rollout/{rollout_id}/result",
    "0.4: wait for the next state change; renews the lease",
    response=RolloutState04,
    errors=(401, 403, 404, 422),
    headers=(LEASE_HEADER,),
)
STATUS = DeclaredEndpoint(
    "GET",
    "/rollout/{rollout_id}/status",
    "State of a rollout; `unknown` when there is no such rollout",
    response=StatusReply,
    errors=(401, 422),
)
CANCEL = DeclaredEndpoint(
    "POST", "/rollout/cancel", "Cancel by ids, by prefix, or all", CancelRequest, CancelReply, errors=(401, 422)
)
HEALTH = DeclaredEndpoint(
    "GET", "/health", "Health; its keys identify the generation", response=ServerHealth, bearer=None
)
ENDPOINTS = (START, CANCEL, RESULT, STATUS, HEALTH)

SWEEP_EVERY_S = 0.5
RETURNS_WITHIN_S = 1.0
"""A reader that polls comes back this soon after each answer; shutting down waits for it."""


@dataclass(eq=False, slots=True)
class Kept:
    """A rollout as its requester knows it."""

    entry: AcceptedRollout
    init: RolloutInit | None
    """Dropped once the rollout is over."""
    lease: str | None
    """None: called back, not polled."""
    lease_until: float = 0.0
    readers: int = 0
    last_read: float = -1e9
    """When its state was last handed out."""
    read: bool = False
    """The final result was handed out at least once."""
    completion_told: bool = False
    """The completion callback is on its way: it is said once."""


class RolloutService:
    """The rollouts of `POST /rollout`: leases, callbacks, results kept for late readers."""

    def __init__(
        self,
        backend: Backend,
        runtime: ServerRuntime,
        *,
        instance_id: str | None = None,
        traces: TraceFolder | None = None,
        files: TrajectoryWriter | None = None,
    ) -> None:
        self.backend = backend
        self.runtime = runtime
        self.process_id = str(uuid.uuid4())
        self.instance_id = instance_id or self.process_id
        self.limits = runtime.limits
        self._traces = traces
        self._files = files
        self._executions: dict[str, ExecutionResult] = {}
        """Between the end of the backend's work and the end of the rollout."""
        self._kept: dict[str, Kept] = {}
        runtime.unread = self._unread
        runtime.background.append(self.sweep)

    def accept(self, init: RolloutInit) -> RolloutAccepted | None:
        """Takes a rollout in; the answer of a polled one, None for one that is called back. Raises `NotAccepted`."""
        polled = init.completion_callback_url is None and init.grader_callback_url is None
        if init.rollout_id is None:
            if polled:
                raise HttpProblem(422, "rollout_id is required when no callback URLs are given")
            init = init.model_copy(update={"rollout_id": secrets.token_hex(16)})
        if not polled and init.grader_callback_url is None:
            init = init.model_copy(update={"grade": False})
        rollout_id = str(init.rollout_id)
        known = self._kept.get(rollout_id)
        if known is not None:
            if known.lease is None and not polled and (known.init is None or known.init == init):
                return None  # the same request again: it is already ours
            raise HttpProblem(409, f"rollout {rollout_id} already exists")
        if self.runtime.queue.live(rollout_id) is not None:
            raise HttpProblem(409, f"rollout {rollout_id} was started by another generation's init")
        kept = Kept(entry=self._entry(rollout_id, init), init=init, lease=secrets.token_urlsafe(24) if polled else None)
        kept.entry.on_end = lambda _: self._ended(kept)
        if not polled:
            kept.entry.on_grading = lambda _: self._call_completion(kept, init, None)
        self.runtime.queue.accept(kept.entry)
        self._kept[rollout_id] = kept
        self._trace(init, "rollout_accepted", messages=init.initial_messages, metadata=init.metadata)
        kept.lease_until = asyncio.get_running_loop().time() + self.limits.lease_s
        if kept.lease is None:
            return None
        return RolloutAccepted(
            rollout_id=rollout_id,
            polling_lease_token=kept.lease,
            result_wait_timeout_sec=self.limits.result_wait_s,
            polling_lease_timeout_sec=self.limits.lease_s,
        )

    async def result(self, rollout_id: str, lease: str | None, gone: Callable[[], Awaitable[None]]) -> RolloutState04:
        """Waits for a change of state, or for the result, or until the reader is `gone`; renews the lease."""
        if lease is None:
            raise HttpProblem(422, [{"type": "missing", "loc": ["header", LEASE_HEADER], "msg": "Field required"}])
        kept = self._kept.get(rollout_id)
        if kept is None:
            raise HttpProblem(404, f"no rollout {rollout_id}")
        if kept.lease is None or not hmac.compare_digest(kept.lease.encode(), lease.encode()):
            raise HttpProblem(403, f"the {LEASE_HEADER} header is not the lease token of rollout {rollout_id}")
        loop = asyncio.get_running_loop()
        if kept.entry.outcome is None:
            kept.readers += 1
            watch = loop.create_task(_wake_when(gone, kept.entry))
            try:
                await kept.entry.changed(self.limits.result_wait_s)
            finally:
                watch.cancel()
                kept.readers -= 1
                kept.last_read = loop.time()
        kept.lease_until = loop.time() + self.limits.lease_s
        kept.read = kept.read or kept.entry.outcome is not None
        return self.state(rollout_id)

    def state(self, rollout_id: str) -> RolloutState04:
        kept = self._kept.get(rollout_id)
        if kept is None:
            return RolloutState04(rollout_id=rollout_id, status="unknown")
        entry = kept.entry
        if entry.outcome is None:
            return RolloutState04(rollout_id=rollout_id, status=entry.status)
        return RolloutState04(
            rollout_id=rollout_id, status=entry.status, sample=entry.outcome.sample, **entry.outcome.errors
        )

    def cancel(self, request: CancelRequest) -> dict[str, str]:
        given = [name for name in ("ids", "prefix", "all") if getattr(request, name) is not None]
        if len(given) != 1:
            raise HttpProblem(422, "give exactly one of ids, prefix or all")
        if request.ids is not None:
            ids = request.ids
        elif request.prefix is not None:
            ids = [rollout_id for rollout_id in self.runtime.queue.live_ids() if rollout_id.startswith(request.prefix)]
        else:
            ids = self.runtime.queue.live_ids() if request.all else []
        said = self.runtime.queue.cancel(ids)
        for rollout_id in said:
            if (kept := self._kept.get(rollout_id)) is not None:
                kept.read = True  # whoever cancels a rollout knows its end
        return said

    def health(self) -> ServerHealth:
        queue = self.runtime.queue
        return ServerHealth(
            concurrency=queue.concurrency(),
            instance_id=self.instance_id,
            process_id=self.process_id,
            lifecycle=ServerLifecycle(accepting_rollouts=queue.accepting, active_rollouts=queue.active),
        )

    async def sweep(self) -> None:
        """Cancels rollouts whose lease ended, forgets results that were kept long enough; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now = loop.time()
            for rollout_id, kept in list(self._kept.items()):
                finished = kept.entry.finished_at
                if finished is not None:
                    if now - finished > self.limits.keep_s:
                        del self._kept[rollout_id]
                elif kept.lease is not None and kept.readers == 0 and now > kept.lease_until:
                    self.runtime.queue.cancel([rollout_id], "the lease expired: no client read the result in time")

    def _entry(self, rollout_id: str, init: RolloutInit) -> AcceptedRollout:
        if init.agent_timeout_sec is not None:
            grader = init.grader_timeout_sec if init.grade else 0.0
            known = init.agent_timeout_sec + (grader if grader is not None else self.limits.rollout_timeout_s)
            limit = known + self.limits.timeout_grace_s + float(getattr(self.backend, "overhead_s", 0.0))
        else:
            limit = self.limits.rollout_timeout_s

        async def execute(entry: AcceptedRollout) -> RolloutOutcome:
            result = await self.backend.execute(init, on_state=entry.switch)
            if self._files is not None and entry.outcome is None:
                self._executions[rollout_id] = result
            return from_execution(result)

        return AcceptedRollout(rollout_id, execute, limit)

    def _ended(self, kept: Kept) -> None:
        init, outcome = kept.init, kept.entry.outcome
        kept.init = None
        assert init is not None
        assert outcome is not None
        self._trace(init, "rollout_ended", **_facts(outcome))
        write_files = self._files_of(kept, init)
        if kept.lease is not None:
            if write_files is not None:
                write_files(None)
            return
        self._call_completion(kept, init, outcome, None if init.grader_callback_url else write_files)
        if init.grader_callback_url is not None:
            done = outcome.status == "success"
            self._post(
                init,
                init.grader_callback_url,
                GraderCallback(
                    status="success" if done else "failure",
                    rollout_id=str(init.rollout_id),
                    sample=outcome.sample,
                    **outcome.errors,
                ),
                write_files,
            )
        kept.entry.outcome = RolloutOutcome(outcome.status)  # delivered elsewhere: only the ending is kept

    def _files_of(self, kept: Kept, init: RolloutInit) -> Listener | None:
        """What writes the rollout's files; None when there are to be none. Called with the answer to the last
        callback, so that usage and cost are in them."""
        execution = self._executions.pop(kept.entry.id, None)
        if self._files is None or not self._files.wants(kept.entry.id):
            return None
        return partial(self._files.put, EndedRollout.of(kept.entry, init, execution))

    def _call_completion(
        self, kept: Kept, init: RolloutInit, outcome: RolloutOutcome | None, listener: Listener | None = None
    ) -> None:
        """The workflow ended: said once, when grading starts or at the end, whichever comes first."""
        url = init.completion_callback_url
        if url is None or kept.completion_told:
            return
        kept.completion_told = True
        finished = outcome is None or outcome.agent_finished
        errors = NO_ERRORS if outcome is None or finished else outcome.errors
        status = "success" if outcome is None or finished else outcome.status
        self._post(
            init,
            url,
            CompletionCallback(
                status=status, rollout_id=str(init.rollout_id), extra_fields=init.extra_fields, **errors
            ),
            listener,
        )

    def _post(self, init: RolloutInit, url: str, message: Record, listener: Listener | None = None) -> None:
        self.runtime.delivery.send(
            Post(str(init.rollout_id), url, wire_text(message), init.controller_api_key),
            listener,
        )

    def _trace(self, init: RolloutInit, event: str, **facts: object) -> None:
        if self._traces is None:
            return
        trace = self._traces.open(str(init.rollout_id), (init.llm_api_key, init.controller_api_key))
        head = {"event": event, "rollout_id": init.rollout_id, "timestamp": utc_now().isoformat()}
        trace.write({**head, **facts})

    def _unread(self) -> int:
        since = asyncio.get_running_loop().time() - RETURNS_WITHIN_S
        return sum(1 for kept in self._kept.values() if not kept.read and (kept.readers or kept.last_read > since))


def _facts(outcome: RolloutOutcome) -> dict[str, object]:
    sample = outcome.sample.to_dict() if outcome.sample else None
    failure = outcome.failure.to_dict() if outcome.failure else None
    return {"status": outcome.status, "sample": sample, "failure": failure}


def add_rollout_routes(app: RolloutApp, service: RolloutService, *, health: bool = True) -> None:
    """The endpoints of `service`."""
    limit = service.limits.max_body_bytes

    async def start(request: Request) -> Response:
        await service.runtime.pacer.pace()
        accepted = service.accept(parse(RolloutInit, await read_body(request, limit)))
        return reply_json({}, 202) if accepted is None else reply(accepted, 202)

    async def result(request: Request) -> Response:
        lease = request.headers.get(LEASE_HEADER)
        return reply(await service.result(request.path_params["rollout_id"], lease, _gone(request)))

    async def status(request: Request) -> Response:
        rollout_id = _checked(request.path_params["rollout_id"])
        return reply(StatusReply(rollout_id=rollout_id, status=service.state(rollout_id).status))

    async def cancel(request: Request) -> Response:
        asked = parse(CancelRequest, await read_body(request, limit))
        return reply(CancelReply(dispositions=service.cancel(asked)))

    async def tell_health(_: Request) -> Response:
        return reply(service.health())

    app.add_endpoints({START: start, CANCEL: cancel, RESULT: result, STATUS: status})
    if health:
        app.add_endpoints({HEALTH: tell_health})


async def _wake_when(gone: Callable[[], Awaitable[None]], entry: AcceptedRollout) -> None:
    await gone()
    entry.wake()


def _gone(request: Request) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return wait


def _checked(rollout_id: str) -> str:
    try:
        return check_rollout_id(rollout_id)
    except ValueError as exc:
        raise HttpProblem(422, str(exc)) from exc
