"""Why a run takes so long, or does not go on: what is in flight now, and where the time of finished rollouts went.

Reads a journal: the pulse that the run's watchdog writes once a second, and the calls that stored rollouts recorded.
Changes nothing, and says nothing that these do not show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Literal

from osmosis.base.json_types import JsonObject
from osmosis.base.processes import is_same

from .journal import Journal

State = Literal["pending", "running", "over", "interrupted"]
FRESH_S = 10.0
RECENT_S = 60.0
_MANY = 0.3
"""The share of the time, or of what is in flight, from which something is worth a sentence."""
_STRAGGLER = 5.0
"""How many times the p95 of a rollout one has to be in a stage to be called stuck."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that the run waits for, and what to do."""

    code: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Times:
    """Where the time of finished rollouts went, in shares of all of it; seconds are of one rollout or call."""

    rollouts: int
    median_s: float
    p95_s: float
    model: float
    agent: float
    """Of the agent itself, its tools included."""
    score: float
    calls: int
    call_p50_s: float
    call_p95_s: float
    retries: int
    failed_calls: int


@dataclass(frozen=True)
class Why:
    """What a run waits for."""

    name: str
    state: State
    done: int
    total: int | None
    per_minute: float | None
    """Rollouts that ended, over the whole session; None before the first."""
    per_minute_now: float | None
    """The same over the last minute."""
    limit: int | None
    stages: dict[str, int]
    longest: list[tuple[str, str, float]]
    times: Times | None
    reasons: list[Reason] = field(default_factory=list)

    def to_dict(self) -> JsonObject:
        return asdict(self)


def explain(journal: Journal, *, now: float | None = None) -> Why:
    """Of the run in this journal; `now` in seconds since the epoch. Raises NotFound when there is no run."""
    now = time.time() if now is None else now
    run, plan, pulse = journal.run(), journal.plan(), journal.pulse() or {}
    stored = list(journal.lines())
    ends = sorted(_ended(line) for line in stored)
    times = _times(stored)
    rows = run.get("rows")
    total = rows * plan.attempts if isinstance(rows, int) else None
    state = _state(run, pulse, now)
    began = datetime.fromisoformat((run.get("sessions") or [{}])[-1].get("started_at") or run["created_at"]).timestamp()
    running = state == "running"
    mine = [end for end in ends if end >= began]
    until = now if running else (mine[-1] if mine else began)
    why = Why(
        name=journal.folder.name,
        state=state,
        done=len(stored),
        total=total,
        per_minute=60 * len(mine) / max(1.0, until - began) if mine else None,
        per_minute_now=float(sum(end > now - RECENT_S for end in mine))
        if running and until - began > RECENT_S
        else None,
        limit=pulse.get("limit") if running else None,
        stages=dict(pulse.get("stages") or {}) if running else {},
        longest=[(name, stage, since) for name, stage, since in pulse.get("longest") or []] if running else [],
        times=times,
    )
    why.reasons.extend(_reasons(why, pulse, plan.concurrency, now))
    return why


def explain_sample(
    name: str,
    state: State,
    sample: Sequence[JsonObject],
    ends: Sequence[float],
    *,
    done: int,
    total: int | None,
    began: float | None,
    until: float | None,
    concurrency: int,
    stage: str = "",
    failure: str | None = None,
) -> Why:
    """Of a run that goes on elsewhere: some of its rollouts, when each that ended did, and what its job says of itself.

    `began` and `until` (None: it goes on) are seconds since the epoch, as `ends` are.
    """
    now = time.time() if until is None else until
    going = state == "running" and began is not None and now - began > RECENT_S
    why = Why(
        name=name,
        state=state,
        done=done,
        total=total,
        per_minute=60 * len(ends) / max(1.0, now - began) if ends and began is not None else None,
        per_minute_now=float(sum(end > now - RECENT_S for end in ends)) if going else None,
        limit=None,
        stages={},
        longest=[],
        times=_times(sample),
    )
    if state == "pending":
        why.reasons.append(
            Reason("queue", f"it waits for a worker{f': {stage}' if stage else ''}", "osmosis worker list")
        )
    elif stage and not done:
        why.reasons.append(
            Reason("stage", f"no rollout has ended yet: its job is at {stage!r}", f"osmosis eval logs {name}")
        )
    if failure:
        why.reasons.append(Reason("failed", f"it failed: {failure}", f"osmosis eval logs {name}"))
    why.reasons.extend(_reasons(why, {}, concurrency, now))
    return why


def _ended(line: JsonObject) -> float:
    began = datetime.fromisoformat(str(line["started_at"])).timestamp()
    return began + float(line.get("duration_ms") or 0.0) / 1000


def _state(run: JsonObject, pulse: JsonObject, now: float) -> State:
    session = (run.get("sessions") or [{}])[-1]
    if "ended_at" in session:
        return "over"
    alive = bool(pulse) and is_same(int(pulse["pid"]), pulse.get("process"))
    just_begun = not pulse and now - datetime.fromisoformat(session["started_at"]).timestamp() < FRESH_S
    return "running" if alive or just_begun else "interrupted"


def _times(stored: Sequence[JsonObject]) -> Times | None:
    whole = sorted(float(line.get("duration_ms") or 0.0) / 1000 for line in stored)
    if not whole:
        return None
    calls = [call for line in stored for call in line.get("calls") or ()]
    took = sorted(float(call.get("duration_ms") or 0.0) / 1000 for call in calls)
    scores = sum(
        float(score.get("duration_ms") or 0.0) / 1000
        for line in stored
        for score in (line.get("scores") or {}).values()
    )
    model = min(sum(took), sum(whole))
    spent = sum(whole) + scores or 1.0
    return Times(
        rollouts=len(whole),
        median_s=_at(whole, 0.5),
        p95_s=_at(whole, 0.95),
        model=model / spent,
        agent=(sum(whole) - model) / spent,
        score=scores / spent,
        calls=len(calls),
        call_p50_s=_at(took, 0.5),
        call_p95_s=_at(took, 0.95),
        retries=sum(int(call.get("retries") or 0) for call in calls),
        failed_calls=sum(1 for call in calls if call.get("error")),
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _reasons(why: Why, pulse: JsonObject, asked: int, now: float) -> Iterator[Reason]:
    if why.state == "interrupted":
        yield Reason(
            "interrupted", "it is not running: its process ended before the run did", f"osmosis eval resume {why.name}"
        )
    if why.state == "running":
        yield from _in_flight(why, pulse, asked, now)
    times = why.times
    if times is None:
        return
    if times.model > 0.5:
        slow = f"a call takes {times.call_p50_s:.1f} s, one in twenty more than {times.call_p95_s:.1f} s"
        fix = "more at once (--batch-size, or auto), shorter answers (--max-tokens), a faster endpoint"
        yield Reason("model", f"{times.model:.0%} of the time is the model's: {slow}", fix)
    if times.agent > _MANY:
        fix = "measure tools and code of the agent; for code that burns CPU: --workers auto"
        yield Reason("agent", f"{times.agent:.0%} of the time is the agent's own, its tools included", fix)
    if times.score > _MANY:
        fix = "a slow judge or score function: score later (eval regrade), or --workers auto for code that burns CPU"
        yield Reason("score", f"{times.score:.0%} of the time is scoring", fix)
    if times.retries + times.failed_calls > 0.1 * max(1, times.calls):
        what = f"{times.retries} retries and {times.failed_calls} failed calls in {times.calls} model calls"
        yield Reason(
            "retries", what, "osmosis eval report says what failed; the endpoint may be overloaded: fewer at once"
        )


def _in_flight(why: Why, pulse: JsonObject, asked: int, now: float) -> Iterator[Reason]:
    blocked = pulse.get("blocked_s")
    if blocked:
        where = pulse.get("blocked_at") or "an unknown place"
        yield Reason(
            "event-loop", f"the event loop has been blocked for {blocked:.0f} s at {where}", "await, or use a thread"
        )
    silent = now - float(pulse.get("at") or now)
    if silent > FRESH_S and not blocked:
        yield Reason(
            "suspended", f"its process has not said anything for {silent:.0f} s", "it is suspended, or starved of CPU"
        )
    flying = sum(why.stages.values())
    waiting = why.stages.get("waiting for a rate limit", 0)
    if flying and waiting > _MANY * flying:
        fix = "the endpoint's limit decides: --batch-size auto adapts to it"
        yield Reason("rate-limit", f"{waiting} of {flying} rollouts wait for a rate limit", fix)
    if why.limit is not None and why.limit < asked:
        yield Reason("limit", f"{why.limit} rollouts at once, not {asked}: it adapts to what the endpoint can take")
    usual = why.times.p95_s if why.times is not None else None
    stuck = [one for one in why.longest if usual is not None and one[2] > max(FRESH_S, _STRAGGLER * usual)]
    if stuck:
        name, stage, since = stuck[0]
        more = f", and {len(stuck) - 1} more like it" if len(stuck) > 1 else ""
        what = f"{name} has been in {stage!r} for {since:.0f} s{more}; one in twenty takes more than {usual:.1f} s"
        yield Reason("stuck", what, "time limits end such rollouts: --agent-timeout, --score-timeout")
    if flying and why.total is not None and flying < asked and why.done + flying >= why.total:
        yield Reason("tail", f"these {flying} rollouts are the last: nothing is left to start beside them")
