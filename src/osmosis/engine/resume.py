"""What to do with the rollouts a journal holds when their inputs may have changed: reuse, grade again, run again.

Looks only; `apply` changes the journal, and each of its steps can be cut off and started again without losing
anything that was paid for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import orjson

from osmosis.base.light_dataclass import dataclass
from osmosis.datasets.keys import Matching, SelectedRows
from osmosis.errors import Conflict
from osmosis.metrics.summary import Summary
from osmosis.records.dataset import Row
from osmosis.records.keys import Key
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Message, RolloutStatus

from .evaluate import Options, Taken, evaluate
from .journal import Journal, key_of
from .key_set import KeySet
from .observer import Observer
from .recorded import recorded
from .scoring import Scorer

if TYPE_CHECKING:
    from .outcome import Outcome

_RERUN = ("agent", "row", "sampling")
_NAMED = 3


@dataclass(slots=True)
class ResumePlan:
    """How many stored rollouts can be used as they are, and which cannot."""

    reuse: int = 0
    regrade: KeySet = field(default_factory=KeySet)
    rerun: KeySet = field(default_factory=KeySet)
    retry: KeySet = field(default_factory=KeySet)
    """Failed ones that were asked to be run again."""
    gone: KeySet = field(default_factory=KeySet)
    """Of rows or attempts that are not selected any more."""
    owed: int = 0
    """Never finished."""
    changed: dict[str, int] = field(default_factory=dict)
    """Which input changed, for how many rollouts."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The files that changed, of `agent` and `score`, as far as they are known by name."""
    moved: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Stored row keys to the keys and places of now, where the dataset was edited around them."""
    taken: Taken | None = None
    """The figures of everything stored, when all of it is reused: saves reading the journal once more."""

    @property
    def pending(self) -> bool:
        """Whether `apply` has something to do."""
        return bool(self.drifted or len(self.retry) or self.moved)

    @property
    def drifted(self) -> bool:
        """Whether stored results do not fit the inputs of now."""
        return bool(len(self.regrade) or len(self.rerun) or len(self.gone))

    def line(self) -> str:
        """The plan in one line."""
        parts = [f"{self.reuse} reuse", f"{len(self.regrade)} regrade", f"{len(self.rerun)} rerun"]
        parts += [f"{len(self.retry)} retry"] if len(self.retry) else []
        parts += [f"{len(self.gone)} set aside"] if len(self.gone) else []
        parts += [f"{self.owed} to run"] if self.owed else []
        why = ", ".join(f"{name} changed{self._named(name)}" for name in self.changed)
        return ", ".join(parts) + (f" ({why})" if why else "")

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
    """Compares what is stored with the inputs of now.

    `rows` are those selected now. `retry_failed`: categories or phases, empty for all failures. `changed_files`: of the
    `agent` and `score` of what is stored, which changed since.
    """
    found, taken = ResumePlan(files=dict(changed_files or {})), Taken(Summary(plan, score_names=plan.score_fns))
    match, now = Matching(rows), dict(hashes)
    for stored, row_key in _matched(taken.read(journal), taken.done, match):
        if row_key is None or stored.attempt >= plan.attempts:
            found.gone.add((stored.step, row_key or stored.row_key or "", stored.attempt))
            continue
        if retry_failed is not None and _failed(stored, retry_failed):
            found.retry.add((stored.step, row_key, stored.attempt))
            continue
        now["row"] = rows.hash_of(row_key)
        if stored.hashes == now and not found.files:
            found.reuse += 1
        else:
            _sort(found, (stored.step, row_key, stored.attempt), stored, now)
    found.moved = match.moved
    if not found.pending:
        found.taken = taken
    kept = found.reuse + len(found.regrade)
    found.owed = len(rows) * plan.attempts - kept - len(found.rerun) - len(found.retry)
    return found


def settle(journal: Journal, rows: SelectedRows) -> None:
    """Puts what is stored under the keys that its rows have in this dataset, where it is not."""
    match = Matching(rows)
    done = KeySet()
    deque(_matched(journal.outcomes(done), done, match), maxlen=0)
    if match.moved:
        journal.move(match.moved)


def _matched(stored: Iterable[Outcome], done: KeySet, match: Matching) -> Iterator[tuple[Outcome, str | None]]:
    """Each stored rollout with the key of its row as it is now; None when that row is not selected any more.

    `done` holds the keys of all of them, once they were read.
    """
    left = []
    for one in stored:
        row_key = match.key_of(one)
        if row_key is None:
            left.append(one)
        else:
            yield one, row_key
    match.adopt(left, done.rows)
    for one in left:
        yield one, match.key_of(one)


@dataclass(slots=True)
class RegradePlan(ResumePlan):
    """Which stored conversations are scored again although nothing changed that needs it."""

    hashes: dict[str, str] = field(default_factory=dict)
    """`agent` and `sampling` of what is stored."""
    edited: int = 0
    """Rollouts whose rows were edited since, beside the prompt."""


def plan_regrade(
    journal: Journal, rows: Iterable[Row], selected: SelectedRows, *, failed_only: bool = False
) -> RegradePlan:
    """Every rollout that ended well; with `failed_only` those that a score is missing of.

    A conversation can be scored against an edited row while it still begins as that row does, else it is a `Conflict`.
    """
    found, match = RegradePlan(), Matching(selected)
    done = KeySet()
    keys = {one.row_key: row_key for one, row_key in _matched(journal.outcomes(done), done, match)}
    found.moved = match.moved
    changed: dict[int, list[list[Message]]] = {}
    for line in journal.lines():
        row = keys[line["row_key"]]
        failed = any(score.get("failure") for score in (line.get("scores") or {}).values())
        if line["status"] != RolloutStatus.SUCCESS.value or (failed_only and not failed):
            found.reuse += 1
            continue
        found.regrade.add((line.get("step", 0), row or line["row_key"], line["attempt"]))
        hashes = line.get("hashes") or {}
        now = selected.hash_of(row) if row else None
        if hashes.get("row", now) != now:
            changed.setdefault(selected.places[row] if row else line["row_index"], []).append(line["messages"])
        found.hashes = {name: value for name, value in hashes.items() if name in ("agent", "sampling")} or found.hashes
    found.edited = sum(map(len, changed.values()))
    _check_openings(journal, changed, rows)
    return found


def _check_openings(journal: Journal, changed: dict[int, list[list[Message]]], rows: Iterable[Row]) -> None:
    left = dict(changed)
    for row in rows if changed else ():
        opening = row.messages()
        if all(talk[: len(opening)] == opening for talk in changed.get(row.index, ())):
            left.pop(row.index, None)
    if left:
        name = journal.folder.name
        shown = ", ".join(map(str, sorted(left)[:5])) + (" ..." if len(left) > 5 else "")
        raise Conflict(
            f"{sum(map(len, left.values()))} rollouts of run {name} belong to rows that have changed or are gone: "
            f"rows {shown}",
            hint=f"osmosis eval resume {name} runs them again; or restore the dataset",
            rows=sorted(left),
        )


def _sort(found: ResumePlan, key: Key, stored: Outcome, now: Mapping[str, str]) -> None:
    then = stored.hashes
    names = [name for name in (*_RERUN, "score") if name in then and name in now]
    differs = [name for name in names if then[name] != now[name] or found.files.get(name)]
    for name in differs:
        found.changed[name] = found.changed.get(name, 0) + 1
    if any(name in _RERUN for name in differs):
        found.rerun.add(key)
    elif differs and stored.status is RolloutStatus.SUCCESS:
        found.regrade.add(key)
    else:
        found.reuse += 1


def _failed(stored: Outcome, classes: Sequence[str]) -> bool:
    failures = [stored.failure, *(score.failure for score in stored.scores.values())]
    kinds = {kind.value for f in failures if f is not None for kind in (f.category, f.phase)}
    if stored.status is RolloutStatus.SKIPPED:
        kinds.add(RolloutStatus.SKIPPED.value)
    return bool(kinds & set(classes) if classes else kinds)


async def apply(
    found: ResumePlan,
    journal: Journal,
    plan: EvalPlan,
    rows: Iterable[Row],
    scorers: Sequence[Scorer],
    hashes: Mapping[str, str],
    *,
    observer: Observer | None = None,
) -> None:
    """Grades again what needs only that, and takes out what is to be run again or is not selected any more."""
    journal.lock()
    if found.moved:
        journal.move(found.moved)
    if len(found.regrade):
        await regrade(journal, plan, rows, scorers, found.regrade, hashes, observer=observer)
    drop = KeySet([*found.rerun, *found.retry, *found.gone])
    if len(drop):
        journal.drop(drop)


async def regrade(
    journal: Journal,
    plan: EvalPlan,
    rows: Iterable[Row],
    scorers: Sequence[Scorer],
    keys: KeySet,
    hashes: Mapping[str, str],
    *,
    observer: Observer | None = None,
) -> None:
    """Scores these stored rollouts again, without asking the model; the old scores stay until the end."""
    work = Journal(journal.folder / "regrade", redactor=journal.redactor)
    for left in (work.rollouts_path, work.run_path):
        left.unlink(missing_ok=True)
    journal.lock()
    free = plan.model_copy(update={"budget": type(plan.budget)(), "adaptive": False})
    async with recorded(journal.folder) as read:
        await evaluate(
            free,
            rows,
            read,
            scorers=scorers,
            journal=work,
            observer=observer,
            options=Options(only=keys, hashes=dict(hashes)),
        )
    done = work.finished()
    with journal.rewriting() as out:
        for line in _merged(journal, work, done):
            out.write(orjson.dumps(line) + b"\n")
    for path in sorted(work.folder.iterdir()):
        path.unlink()
    work.folder.rmdir()


def _merged(journal: Journal, work: Journal, done: KeySet) -> Iterator[dict[str, object]]:
    for line in journal.lines():
        if key_of(line) not in done:
            yield line
    yield from work.lines()
