"""Which commit turned these rows: a binary search between the commits of two runs, each step a run of its own.

A step is the later run's plan on the rows that are asked about, with the code of one commit in a worktree and the same
dataset, model and score functions; it is kept like any run (`bisect-<commit>`), so what was tried once is not run
again. A commit at which nothing can be scored is passed over, as with `git bisect skip`. Branches and the working tree
stay as they are.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.git import Git, GitError
from osmosis.base.json_types import JsonObject
from osmosis.engine.journal import Journal
from osmosis.errors import ValidationError
from osmosis.records.base import utc_now
from osmosis.records.plan import Selection

from .at_commit import commit_of, folder_at
from .run import stored_report

Say = Callable[[str], None]


@dataclass(frozen=True)
class TriedCommit:
    """One commit of the search."""

    commit: str
    subject: str
    mean: float | None
    """Of the score over the rows and attempts; None where nothing could be scored."""
    bad: bool | None


@dataclass(frozen=True)
class BisectResult:
    """How a search ended. `first_bad` is one commit, or several where those between could not be scored."""

    score: str
    rows: list[int]
    good_mean: float
    bad_mean: float
    first_bad: list[tuple[str, str]]
    """Commit and subject."""
    tried: list[TriedCommit] = field(default_factory=list)

    def to_dict(self) -> JsonObject:
        return {
            "score": self.score,
            "rows": self.rows,
            "good_mean": self.good_mean,
            "bad_mean": self.bad_mean,
            "first_bad": [{"commit": commit, "subject": subject} for commit, subject in self.first_bad],
            "tried": [
                {"commit": one.commit, "subject": one.subject, "mean": one.mean, "bad": one.bad} for one in self.tried
            ],
        }


def mean_of(journal: Journal, score: str, rows: Sequence[int]) -> float | None:
    """Over the rollouts of these rows, failures as 0; None where none has the score."""
    values, scored = [], False
    for outcome in journal.outcomes():
        if outcome.row_index in rows:
            found = outcome.scores.get(score)
            scored = scored or (found is not None and found.value is not None)
            values.append(found.value or 0.0 if found is not None else 0.0)
    return sum(values) / len(values) if scored else None


def bisect(
    good: Journal, bad: Journal, rows: Sequence[int], score: str, *, environ: Mapping[str, str], say: Say
) -> BisectResult:
    """The first commit after `good`'s at which these rows score as in `bad`. Raises ValidationError where the two
    commits are not in line, or the two runs do not differ on these rows."""
    ends = mean_of(good, score, rows), mean_of(bad, score, rows)
    if ends[0] is None or ends[1] is None or ends[0] <= ends[1]:
        raise ValidationError(
            f"on these rows {score} is {ends[0]} in {good.folder.name} and {ends[1]} in {bad.folder.name}",
            hint="the first run has to be the better one on the rows that are bisected",
        )
    middle = (ends[0] + ends[1]) / 2
    root = Path(bad.run()["local"]["base_dir"])
    git = Git(root)
    commits = _between(git, commit_of(good), commit_of(bad))
    tried: dict[str, TriedCommit] = {}

    def try_at(index: int) -> bool | None:
        commit, subject = commits[index]
        if commit not in tried:
            mean = _mean_at(root, bad, commit, rows, score, environ)
            verdict = None if mean is None else mean < middle
            tried[commit] = TriedCommit(commit, subject, mean, verdict)
            shown = "cannot be scored" if mean is None else f"{score} {mean:.3f}, {'bad' if verdict else 'good'}"
            say(f"{commit[:10]} {subject}: {shown}")
        return tried[commit].bad

    low, high = -1, len(commits) - 1  # the last one is the bad run's own commit
    while high - low > 1:
        index = next((i for i in _nearest(low, high) if try_at(i) is not None), None)
        if index is None:
            break  # none between them can be scored
        if tried[commits[index][0]].bad:
            high = index
        else:
            low = index
    return BisectResult(score, list(rows), ends[0], ends[1], commits[low + 1 : high + 1], list(tried.values()))


def _nearest(low: int, high: int) -> Iterator[int]:
    """What lies between, from the middle outwards."""
    middle = (low + high) // 2
    return iter(sorted(range(low + 1, high), key=lambda i: abs(i - middle)))


def _between(git: Git, good: str, bad: str) -> list[tuple[str, str]]:
    """Commit and subject, oldest first, the bad one last."""
    try:
        listed = git.text("log", "--reverse", "--first-parent", "--format=%H%x09%s", f"{good}..{bad}").splitlines()
        git.text("merge-base", "--is-ancestor", good, bad)
    except GitError as problem:
        raise ValidationError(
            f"commit {good[:10]} is not an ancestor of {bad[:10]}: {problem.message}",
            hint="bisect runs of one line of commits",
        ) from problem
    if not listed:
        raise ValidationError("both runs are of the same commit: what differs is not the code")
    return [(commit, subject) for commit, _, subject in (line.partition("\t") for line in listed)]


def _mean_at(
    root: Path, bad: Journal, commit: str, rows: Sequence[int], score: str, environ: Mapping[str, str]
) -> float | None:
    folder = bad.folder.parent / f"bisect-{commit[:12]}"
    with folder_at(root, commit) as base:
        _ask(bad, folder, base, rows)
        # A process of its own: its code is another version of modules that may be loaded here.
        command = [sys.executable, "-m", "osmosis", "eval", "resume", str(folder), "--yes", "--quiet"]
        subprocess.run(command, cwd=base, env=dict(environ), capture_output=True, check=False)
    journal = Journal(folder)
    return mean_of(journal, score, rows) if stored_report(journal) is not None else None


def _ask(bad: Journal, folder: Path, base: Path, rows: Sequence[int]) -> None:
    """The run of one commit, as its `run.json` says; what it holds already stays."""
    plan, made = bad.plan(), bad.run()
    local: JsonObject = {**made["local"], "base_dir": str(base)}
    dataset = Path(made["local"]["base_dir"], plan.dataset).expanduser().absolute()
    wanted = plan.model_copy(
        update={"name": folder.name, "selection": Selection(rows=sorted(rows)), "dataset": str(dataset)}
    )
    old = Journal(folder)
    known = old.run() if old.exists else {"schema": made.get("schema", 1), "created_at": utc_now().isoformat()}
    folder.mkdir(parents=True, exist_ok=True)
    run = {**known, "plan": wanted.model_dump(mode="json"), "local": local, "sessions": known.get("sessions", [])}
    write_json(folder / "run.json", run)
