"""Explain where the time of a run goes: its rollouts in flight now, and the recorded calls of finished ones."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Literal

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import is_same
from osmosis.engine.journal import Journal

State = Literal["pending", "running", "over", "interrupted"]
FRESH_S = 10.0
RECENT_S = 60.0
_MANY = 0.3
_STRAGGLER = 5.0


@dataclass(frozen=True, slots=True)
class Reason:
    code: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Times:
    rollouts: int
    median_s: float
    p95_s: float
    model: float
    agent: float
    score: float
    calls: int
    call_p50_s: float
    call_p95_s: float
    retries: int
    failed_calls: int


@dataclass(frozen=True, kw_only=True)
class Why:
    name: str
    state: State
    done: int
    total: int | None
    per_minute: float | None
    per_minute_now: float | None
    limit: int | None = None
    stages: dict[str, int] = field(default_factory=dict)
    longest: list[tuple[str, str, float]] = field(default_factory=list)
    times: Times | None
    reasons: list[Reason] = field(default_factory=list)

    def to_dict(self) -> JsonObject:
        return asdict(self)


def explain(journal: Journal, *, now: float | None = None) -> Why:
    now = time.time() if now is None else now
    run, plan, pulse = journal.run(), journal.plan(), journal.pulse()
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
    diagnosis = Why(
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
    diagnosis.reasons.extend(_reasons(diagnosis, pulse, plan.concurrency, now))
    return diagnosis


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
    """Diagnose a run that goes on elsewhere, by a sample of its rollouts, their ends and its job's pulse."""
    now = time.time() if until is None else until
    going = state == "running" and began is not None and now - began > RECENT_S
    diagnosis = Why(
        name=name,
        state=state,
        done=done,
        total=total,
        per_minute=60 * len(ends) / max(1.0, now - began) if ends and began is not None else None,
        per_minute_now=float(sum(end > now - RECENT_S for end in ends)) if going else None,
        times=_times(sample),
    )
    if state == "pending":
        diagnosis.reasons.append(
            Reason("queue", f"it waits for a worker{f': {stage}' if stage else ''}", "osmosis worker list")
        )
    elif stage and not done:
        diagnosis.reasons.append(
            Reason("stage", f"no rollout has ended yet: its job is at {stage!r}", f"osmosis eval logs {name}")
        )
    if failure:
        diagnosis.reasons.append(Reason("failed", f"it failed: {failure}", f"osmosis eval logs {name}"))
    diagnosis.reasons.extend(_reasons(diagnosis, {}, concurrency, now))
    return diagnosis


def _ended(line: JsonObject) -> float:
    return datetime.fromisoformat(str(line["started_at"])).timestamp() + float(line.get("duration_ms") or 0.0) / 1000


def _state(run: JsonObject, pulse: JsonObject, now: float) -> State:
    session = (run.get("sessions") or [{}])[-1]
    if "ended_at" in session:
        return "over"
    alive = bool(pulse) and is_same(int(pulse["pid"]), pulse.get("process"))
    just_begun = not pulse and now - datetime.fromisoformat(session["started_at"]).timestamp() < FRESH_S
    return "running" if alive or just_begun else "interrupted"


def _times(stored: Sequence[JsonObject]) -> Times | None:
    durations = sorted(float(line.get("duration_ms") or 0.0) / 1000 for line in stored)
    if not durations:
        return None
    calls = [call for line in stored for call in line.get("calls") or ()]
    took = sorted(float(call.get("duration_ms") or 0.0) / 1000 for call in calls)
    scores = sum(
        float(score.get("duration_ms") or 0.0) / 1000
        for line in stored
        for score in (line.get("scores") or {}).values()
    )
    model = min(sum(took), sum(durations))
    spent = sum(durations) + scores or 1.0
    return Times(
        rollouts=len(durations),
        median_s=_at(durations, 0.5),
        p95_s=_at(durations, 0.95),
        model=model / spent,
        agent=(sum(durations) - model) / spent,
        score=scores / spent,
        calls=len(calls),
        call_p50_s=_at(took, 0.5),
        call_p95_s=_at(took, 0.95),
        retries=sum(int(call.get("retries") or 0) for call in calls),
        failed_calls=sum(1 for call in calls if call.get("error")),
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _reasons(diagnosis: Why, pulse: JsonObject, concurrency: int, now: float) -> Iterator[Reason]:
    if diagnosis.state == "interrupted":
        yield Reason(
            "interrupted",
            "it is not running: its process ended before the run did",
            f"osmosis eval resume {diagnosis.name}",
        )
    if diagnosis.state == "running":
        yield from _in_flight(diagnosis, pulse, concurrency, now)
    times = diagnosis.times
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
        problem = f"{times.retries} retries and {times.failed_calls} failed calls in {times.calls} model calls"
        yield Reason(
            "retries", problem, "osmosis eval show says what failed; the endpoint may be overloaded: fewer at once"
        )


def _in_flight(diagnosis: Why, pulse: JsonObject, concurrency: int, now: float) -> Iterator[Reason]:
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
    flying = sum(diagnosis.stages.values())
    waiting = diagnosis.stages.get("waiting for a rate limit", 0)
    if flying and waiting > _MANY * flying:
        fix = "the endpoint's limit decides: --batch-size auto adapts to it"
        yield Reason("rate-limit", f"{waiting} of {flying} rollouts wait for a rate limit", fix)
    if diagnosis.limit is not None and diagnosis.limit < concurrency:
        yield Reason(
            "limit", f"{diagnosis.limit} rollouts at once, not {concurrency}: it adapts to what the endpoint can take"
        )
    usual = diagnosis.times.p95_s if diagnosis.times is not None else None
    stuck = [
        flight for flight in diagnosis.longest if usual is not None and flight[2] > max(FRESH_S, _STRAGGLER * usual)
    ]
    if stuck:
        name, stage, since = stuck[0]
        more = f", and {len(stuck) - 1} more like it" if len(stuck) > 1 else ""
        problem = f"{name} has been in {stage!r} for {since:.0f} s{more}; one in twenty takes more than {usual:.1f} s"
        yield Reason("stuck", problem, "time limits end such rollouts: --agent-timeout, --score-timeout")
    if flying and diagnosis.total is not None and flying < concurrency and diagnosis.done + flying >= diagnosis.total:
        yield Reason("tail", f"these {flying} rollouts are the last: nothing is left to start beside them")
