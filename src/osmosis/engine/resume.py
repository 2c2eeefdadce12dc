"""Compare a journal's rollouts with their inputs, which may have changed: reuse, grade again, run again."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import orjson

from osmosis.datasets.keys import Matching, SelectedRows
from osmosis.engine.agent import RecordedAgent
from osmosis.engine.evaluate import Evaluation, StoredFigures
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.scoring import Scorer
from osmosis.errors import Conflict
from osmosis.metrics.summary import Summary
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Message, Rollout, RolloutStatus
from osmosis.records.run.rows import Key, Row

_RERUN = ("agent", "row", "sampling")
_NAMED = 3


@dataclass(slots=True)
class ResumePlan:
    reuse: int = 0
    regrade: set[Key] = field(default_factory=set)
    rerun: set[Key] = field(default_factory=set)
    retry: set[Key] = field(default_factory=set)
    gone: set[Key] = field(default_factory=set)
    owed: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    moved: dict[str, tuple[str, int]] = field(default_factory=dict)
    stored: StoredFigures | None = None

    @property
    def pending(self) -> bool:
        return bool(self.drifted or self.retry or self.moved)

    @property
    def drifted(self) -> bool:
        return bool(self.regrade or self.rerun or self.gone)

    def line(self) -> str:
        parts = [f"{self.reuse} kept", f"{len(self.regrade)} to score again", f"{len(self.rerun)} to run again"]
        parts += [f"{len(self.retry)} to retry"] if len(self.retry) else []
        parts += [f"{len(self.gone)} set aside"] if len(self.gone) else []
        parts += [f"{self.owed} to run"] if self.owed else []
        reasons = ", ".join(f"{name} changed{self._named(name)}" for name in self.changed)
        return ", ".join(parts) + (f" ({reasons})" if reasons else "")

    def _named(self, part: str) -> str:
        names = self.files.get(part, [])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f": {', '.join(names[:_NAMED])}{more}" if names else ""

    def to_dict(self) -> dict[str, object]:
        return {
            "reuse": self.reuse,
            "regrade": len(self.regrade),
            "rerun": len(self.rerun),
            "retry": len(self.retry),
            "set_aside": len(self.gone),
            "to_run": self.owed,
            "changed": self.changed,
            "files": self.files,
        }


def plan_resume(
    journal: Journal,
    rows: SelectedRows,
    plan: EvalPlan,
    hashes: Mapping[str, str],
    *,
    retry_failed: Sequence[str] | None = None,
    changed_files: Mapping[str, list[str]] | None = None,
) -> ResumePlan:
    resume = ResumePlan(files=dict(changed_files or {}))
    figures = StoredFigures(Summary(plan, score_names=plan.score_fns))
    match, now = Matching(rows), dict(hashes)
    for stored, row_key in _matched(figures.read(journal), figures.done, match):
        if row_key is None or stored.attempt >= plan.attempts:
            resume.gone.add((stored.step, row_key or stored.row_key or "", stored.attempt))
            continue
        if retry_failed is not None and _failed(stored, retry_failed):
            resume.retry.add((stored.step, row_key, stored.attempt))
            continue
        now["row"] = rows.hash_of(row_key)
        if stored.hashes == now and not resume.files:
            resume.reuse += 1
        else:
            key = (stored.step, row_key, stored.attempt)
            then = stored.hashes
            names = [name for name in (*_RERUN, "score") if name in then and name in now]
            differs = [name for name in names if then[name] != now[name] or resume.files.get(name)]
            for name in differs:
                resume.changed[name] = resume.changed.get(name, 0) + 1
            if any(name in _RERUN for name in differs):
                resume.rerun.add(key)
            elif differs and stored.status is RolloutStatus.SUCCESS:
                resume.regrade.add(key)
            else:
                resume.reuse += 1
    resume.moved = match.moved
    if not resume.pending:
        resume.stored = figures
    reused = resume.reuse + len(resume.regrade)
    resume.owed = len(rows) * plan.attempts - reused - len(resume.rerun) - len(resume.retry)
    return resume


def settle(journal: Journal, rows: SelectedRows) -> None:
    match = Matching(rows)
    done: set[Key] = set()
    deque(_matched(journal.rollouts(done), done, match), maxlen=0)
    if match.moved:
        journal.move(match.moved)


def _matched(stored: Iterable[Rollout], done: set[Key], match: Matching) -> Iterator[tuple[Rollout, str | None]]:
    left = []
    for rollout in stored:
        row_key = match.key_of(rollout)
        if row_key is None:
            left.append(rollout)
        else:
            yield rollout, row_key
    match.adopt(left, {row_key for _, row_key, _ in done})
    for rollout in left:
        yield rollout, match.key_of(rollout)


@dataclass(slots=True)
class RegradePlan(ResumePlan):
    hashes: dict[str, str] = field(default_factory=dict)
    edited: int = 0


def plan_regrade(
    journal: Journal, rows: Iterable[Row], selected: SelectedRows, *, failed_only: bool = False
) -> RegradePlan:
    regrade_plan, match = RegradePlan(), Matching(selected)
    done: set[Key] = set()
    keys = {rollout.row_key: row_key for rollout, row_key in _matched(journal.rollouts(done), done, match)}
    regrade_plan.moved = match.moved
    changed: dict[int, list[list[Message]]] = {}
    for line in journal.lines():
        row = keys[line["row_key"]]
        failed = any(score.get("failure") for score in (line.get("scores") or {}).values())
        if line["status"] != RolloutStatus.SUCCESS.value or (failed_only and not failed):
            regrade_plan.reuse += 1
            continue
        regrade_plan.regrade.add((line.get("step", 0), row or line["row_key"], line["attempt"]))
        hashes = line.get("hashes") or {}
        now = selected.hash_of(row) if row else None
        if hashes.get("row", now) != now:
            changed.setdefault(selected.places[row] if row else line["row_index"], []).append(line["messages"])
        regrade_plan.hashes = {
            name: value for name, value in hashes.items() if name in ("agent", "sampling")
        } or regrade_plan.hashes
    regrade_plan.edited = sum(map(len, changed.values()))
    _check_openings(journal, changed, rows)
    return regrade_plan


def _check_openings(journal: Journal, changed: dict[int, list[list[Message]]], rows: Iterable[Row]) -> None:
    left = dict(changed)
    for row in rows if changed else ():
        opening = row.messages()
        if all(talk[: len(opening)] == opening for talk in changed.get(row.index, ())):
            left.pop(row.index, None)
    if left:
        name = journal.folder.name
        listed = ", ".join(map(str, sorted(left)[:5])) + (" ..." if len(left) > 5 else "")
        raise Conflict(
            f"{sum(map(len, left.values()))} rollouts of run {name} belong to rows that have changed or are gone: "
            f"rows {listed}",
            hint=f"osmosis eval resume {name} runs them again; or restore the dataset",
            rows=sorted(left),
        )


def _failed(stored: Rollout, classes: Sequence[str]) -> bool:
    failures = [stored.failure, *(score.failure for score in stored.scores.values())]
    kinds = {kind.value for f in failures if f is not None for kind in (f.category, f.phase)}
    if stored.status is RolloutStatus.SKIPPED:
        kinds.add(RolloutStatus.SKIPPED.value)
    return bool(kinds & set(classes) if classes else kinds)


async def apply(
    resume: ResumePlan,
    journal: Journal,
    plan: EvalPlan,
    rows: Iterable[Row],
    scorers: Sequence[Scorer],
    hashes: Mapping[str, str],
) -> None:
    journal.lock()
    if resume.moved:
        journal.move(resume.moved)
    if resume.regrade:
        await regrade(journal, plan, rows, scorers, resume.regrade, hashes)
    if drop := resume.rerun | resume.retry | resume.gone:
        journal.drop(drop)


async def regrade(
    journal: Journal,
    plan: EvalPlan,
    rows: Iterable[Row],
    scorers: Sequence[Scorer],
    keys: set[Key],
    hashes: Mapping[str, str],
) -> None:
    """Score these stored rollouts again without asking the model; the old scores stay until the end."""
    work = Journal(journal.folder / "regrade", redactor=journal.redactor)
    for left in (work.rollouts_path, work.run_path):
        left.unlink(missing_ok=True)
    journal.lock()
    free = plan.model_copy(update={"budget": type(plan.budget)(), "adaptive": False})
    agent = RecordedAgent(journal.folder)
    await Evaluation(free, rows, agent, scorers=scorers, journal=work, only=keys, hashes=hashes).run()
    done = work.finished()
    with journal.rewriting() as out:
        for line in chain((line for line in journal.lines() if key_of(line) not in done), work.lines()):
            out.write(orjson.dumps(line) + b"\n")
    for path in sorted(work.folder.iterdir()):
        path.unlink()
    work.folder.rmdir()
