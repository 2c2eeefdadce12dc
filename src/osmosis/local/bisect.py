import math
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from osmosis.base.files import write_json
from osmosis.base.git import Git, GitError
from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.engine.provenance import digest, is_agent_file
from osmosis.errors import ValidationError
from osmosis.local.resume_at_commit import commit_of, folder_at
from osmosis.local.run import stored_report
from osmosis.metrics.fatal_step import CERTAIN, sum_of_logs
from osmosis.metrics.formats import p_value as format_p_value
from osmosis.metrics.intervals import difference_of, levels, verdict_of
from osmosis.records.base import utc_now
from osmosis.records.run.plan import Selection
from osmosis.records.run.rollout import Category

Row = int
Counts = Mapping[Row, tuple[float, int]]
"""Sum and number of the values, each between 0 and 1, of a version's rollouts at each row."""
_JEFFREYS = 0.5


def chances(versions: Sequence[str], counts: Mapping[str, Counts]) -> list[float]:
    """Return for each version the chance that it is the first one changed; equal names are equal code. Pass rates are
    integrated out with Jeffreys' prior. Next is where the chance is nearest to one half (M. Horstein, IEEE Transactions
    on Information Theory 9, 1963; R. Waeber et al., SIAM Journal on Control and Optimization 51, 2013)."""
    likelihoods = [-math.inf] * len(versions)
    for first in range(1, len(versions)):
        before, after = set(versions[:first]), set(versions[first:])
        if not before & after:
            both = (before, after)
            halves = [sum(_likelihood(group, counts, rowwise) for group in both) for rowwise in (True, False)]
            likelihoods[first] = sum_of_logs(halves)
    total = sum_of_logs(likelihoods)
    return [math.exp(likelihood - total) if likelihood > -math.inf else 0.0 for likelihood in likelihoods]


def next_version(versions: Sequence[str], chance: Sequence[float], excluded: Collection[str]) -> int | None:
    changed = [math.fsum(chance[: position + 1]) for position in range(len(versions))]
    positions = [position for position in range(1, len(versions) - 1) if versions[position] not in excluded]
    best = min(positions, key=lambda position: abs(changed[position] - 0.5), default=None)
    return best if best is not None and 1e-9 < changed[best] < 1 - 1e-9 else None


def _likelihood(group: Collection[str], counts: Mapping[str, Counts], rowwise: bool) -> float:
    sums: dict[Row, tuple[float, int]] = {}
    for version in group:
        for row, (total, size) in counts.get(version, {}).items():
            key = row if rowwise else 0
            before = sums.get(key, (0.0, 0))
            sums[key] = (before[0] + total, before[1] + size)
    return math.fsum(
        math.lgamma(total + _JEFFREYS)
        + math.lgamma(size - total + _JEFFREYS)
        - math.lgamma(size + 1)
        - math.log(math.pi)
        for total, size in sums.values()
    )


Say = Callable[[str], None]


Values = dict[int, dict[int, float]]  # Scores by row and attempt; failures of the agent as 0


LEAST_ROLLOUTS = 10
MOST_MEASUREMENTS = 40
NOT_THE_CODE = (
    Category.RATE_LIMIT, Category.AUTH, Category.MODEL_NOT_FOUND, Category.SERVER_ERROR, Category.CONNECTION,
    Category.BAD_RESPONSE, Category.CANCELLED, Category.BUDGET,
)  # fmt: skip


@dataclass(frozen=True)
class Commit:
    commit: str
    subject: str
    files: str


@dataclass(frozen=True)
class TriedCommit:
    commit: str
    subject: str
    mean: float | None
    bad: bool | None


@dataclass(frozen=True)
class BisectResult:
    score: str
    rows: list[int]
    good_mean: float
    bad_mean: float
    first_bad: list[tuple[str, str]]
    """Several where those between cannot be scored; none where the budget ended before one was certain."""
    tried: list[TriedCommit] = field(default_factory=list)
    chances: list[tuple[str, str, float]] = field(default_factory=list)
    """Commit, subject and the chance that it is the first bad one, the likeliest first."""
    rollouts: int = 0

    def to_dict(self) -> JsonObject:
        names = ("commit", "subject", "chance")
        return asdict(self) | {
            "first_bad": [dict(zip(names, commit, strict=False)) for commit in self.first_bad],
            "chances": [dict(zip(names, commit, strict=True)) for commit in self.chances],
        }


def bisect(
    good: Journal,
    bad: Journal,
    rows: Sequence[int],
    score: str,
    *,
    environ: Mapping[str, str],
    say: Say,
    max_rollouts: int | None = None,
) -> BisectResult:
    """Return the first commit after `good`'s at which these rows score as in `bad`, with the chance of each."""
    before, after = (_mean(_values_of(journal, rows, score)) for journal in (good, bad))
    if before is None or after is None or before <= after:
        message = f"on these rows {score} is {before} in {good.folder.name} and {after} in {bad.folder.name}"
        raise ValidationError(message, hint="the first run has to be the better one on the rows that are bisected")
    root = Path(bad.run()["local"]["base_dir"])
    commits = _list_commits(root, commit_of(good), commit_of(bad), dataset=Path(bad.plan().dataset))
    search = _Search(root, bad, commits, rows, score, environ, say)
    budget = max_rollouts or MOST_MEASUREMENTS * len(rows) * search.step
    search.check_ends(budget)
    while True:
        chance = chances(search.versions, search.counts())
        first_bad = _certain(commits, chance, search.unscored)
        position = next_version(search.versions, chance, search.unscored)
        if first_bad or position is None or search.rollouts + len(rows) * search.step > budget:
            break
        search.measure(position, search.attempts.get(commits[position].files, 0) + search.step)
    order = sorted(range(1, len(commits)), key=lambda position: -chance[position])
    likely = [(commits[i].commit, commits[i].subject, chance[i]) for i in order if chance[i] > 0]
    means = search.mean(commits[0]) or 0.0, search.mean(commits[-1]) or 0.0
    return BisectResult(score, list(rows), *means, first_bad, list(search.tried(chance)), likely, search.rollouts)


@dataclass
class _Search:
    root: Path
    bad: Journal
    commits: Sequence[Commit]
    rows: Sequence[int]
    score: str
    environ: Mapping[str, str]
    say: Say
    attempts: dict[str, int] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)
    _values: dict[str, Values] = field(default_factory=dict)
    _measured: dict[str, Commit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.versions = [commit.files for commit in self.commits]
        self.step = max(self.bad.plan().attempts, math.ceil(LEAST_ROLLOUTS / len(self.rows)))

    @property
    def rollouts(self) -> int:
        return sum(self.attempts.values()) * len(self.rows)

    def measure(self, position: int, attempts: int) -> None:
        commit = self.commits[position]
        folder = self.bad.folder.parent / f"bisect-{commit.commit[:12]}"
        with folder_at(self.root, commit.commit) as base:
            _write_plan(self.bad, folder, base, self.rows, attempts)
            # A process of its own: its code is another version of modules that may be loaded here.
            command = [sys.executable, "-m", "osmosis", "eval", "resume", str(folder), "--yes", "--quiet"]
            subprocess.run(command, cwd=base, env=dict(self.environ), capture_output=True, check=False)
        journal = Journal(folder)
        values = None if stored_report(journal) is None else _values_of(journal, self.rows, self.score, attempts)
        self.attempts[commit.files] = attempts
        self._measured.setdefault(commit.files, commit)
        if values is None:
            self.unscored.add(commit.files)
        else:
            self._values[commit.files] = values
        mean = self.mean(commit)
        result = "cannot be scored" if mean is None else f"{self.score} {mean:.3f} over {attempts} attempts"
        self.say(f"{commit.commit[:10]} {commit.subject}: {result}")

    def check_ends(self, budget: int) -> None:
        """Measure both ends, each time twice as often; raise ValidationError unless the last is clearly worse."""
        most = max(self.step, budget // 4 // len(self.rows))
        looks = [self.step * 2**i for i in range(most.bit_length()) if self.step * 2**i < most] + [most]
        verdict, p_value = "no clear difference", None
        for attempts, level in zip(looks, levels([look / most for look in looks]), strict=True):
            for position in (0, -1):
                self.measure(position, attempts)
                if self.unscored:
                    message = f"at commit {self.commits[position].commit[:10]} nothing can be scored any more"
                    raise ValidationError(message, hint="restore what the run needed, then try again")
            # The rows are these and no sample of others, so that each attempt is an observation.
            before, after = (self._values[self.versions[position]] for position in (0, -1))
            pairs = [(before[row], after[row]) for row in before if row in after]
            changes = [b[attempt] - a[attempt] for a, b in pairs for attempt in a if attempt in b]
            low, high = self._scale()
            verdict, p_value = verdict_of([difference_of(changes, (low, high), (low, high), 1, 1 - level)], 1 - level)
            if verdict in ("better", "worse"):
                break
        if verdict != "worse":
            p = "" if p_value is None else f", p {format_p_value(p_value)}"
            raise ValidationError(
                f"measured again, these rows are not worse at the later commit: {verdict}{p} "
                f"({self.mean(self.commits[0]):.3f} before, {self.mean(self.commits[-1]):.3f} after, "
                f"{self.attempts[self.versions[0]]} attempts each): they were lost by chance",
                hint="osmosis eval compare says whether the runs differ; with more rows or attempts less is chance",
            )

    def _scale(self) -> tuple[float, float]:
        every = [value for values in self._values.values() for row in values.values() for value in row.values()]
        return min([0.0, *every]), max([1.0, *every])

    def counts(self) -> dict[str, dict[int, tuple[float, int]]]:
        low, high = self._scale()
        return {
            files: {row: (sum((v - low) / (high - low) for v in by.values()), len(by)) for row, by in values.items()}
            for files, values in self._values.items()
        }

    def mean(self, commit: Commit) -> float | None:
        return _mean(self._values.get(commit.files))

    def tried(self, chance: Sequence[float]) -> list[TriedCommit]:
        changed = {commit.files: sum(chance[: i + 1]) > 0.5 for i, commit in enumerate(self.commits)}
        return [
            TriedCommit(
                commit.commit, commit.subject, self.mean(commit), None if files in self.unscored else changed[files]
            )
            for files, commit in self._measured.items()
        ]


def _mean(values: Values | None) -> float | None:
    every = [value for row in (values or {}).values() for value in row.values()]
    return sum(every) / len(every) if every else None


def _certain(commits: Sequence[Commit], chance: Sequence[float], unscored: set[str]) -> list[tuple[str, str]]:
    first = last = max(range(len(commits)), key=lambda position: chance[position])
    while first > 1 and commits[first - 1].files in unscored:
        first -= 1
    while last + 1 < len(commits) and commits[last].files in unscored:
        last += 1
    block = [position for position in range(first, last + 1) if chance[position] > 0]
    if sum(chance[position] for position in block) < CERTAIN:
        return []
    return [(commits[position].commit, commits[position].subject) for position in block]


def _list_commits(root: Path, good: str, bad: str, *, dataset: Path) -> list[Commit]:
    git = Git(root)
    try:
        git.text("merge-base", "--is-ancestor", good, bad)
        lines = git.text("log", "--reverse", "--first-parent", "--format=%H%x09%s", f"{good}..{bad}").splitlines()
    except GitError as problem:
        message = f"commit {good[:10]} is not an ancestor of {bad[:10]}: {problem.message}"
        raise ValidationError(message, hint="bisect runs of one line of commits") from problem
    if not lines:
        raise ValidationError("both runs are of the same commit: what differs is not the code")
    commits = [Commit(good, "", _files_of(git, good, dataset))]
    for commit, _, subject in (line.partition("\t") for line in lines):
        commits.append(Commit(commit, subject, _files_of(git, commit, dataset)))
    if commits[0].files == commits[-1].files:
        raise ValidationError("the agent's files are the same at both commits: what differs is not the code")
    return commits


def _files_of(git: Git, commit: str, dataset: Path) -> str:
    entries = git.text("ls-tree", "-r", "-z", commit, ".").split("\0")
    files = [
        (name, head)
        for head, _, name in (entry.partition("\t") for entry in entries)
        if name and is_agent_file(PurePosixPath(name)) and PurePosixPath(name) != PurePosixPath(dataset)
    ]
    return digest(files)


def _values_of(journal: Journal, rows: Sequence[int], score: str, attempts: float = math.inf) -> Values | None:
    values: Values = {}
    scored = False
    for outcome in journal.rollouts():
        if outcome.row_index not in rows or outcome.attempt >= attempts:
            continue
        outcome_score = outcome.scores.get(score)
        value = outcome_score.value if outcome_score is not None else None
        failure = outcome.failure or (outcome_score.failure if outcome_score is not None else None)
        if value is None and failure is not None and failure.category in NOT_THE_CODE:
            continue
        scored = scored or value is not None
        values.setdefault(outcome.row_index, {})[outcome.attempt] = value or 0.0
    return values if scored else None


def _write_plan(bad: Journal, folder: Path, base: Path, rows: Sequence[int], attempts: int) -> None:
    plan, bad_run = bad.plan(), bad.run()
    local: JsonObject = {**bad_run["local"], "base_dir": str(base)}
    dataset = Path(bad_run["local"]["base_dir"], plan.dataset).expanduser().absolute()
    selection = Selection(rows=sorted(rows))
    step_plan = plan.model_copy(
        update={"name": folder.name, "selection": selection, "dataset": str(dataset), "attempts": attempts}
    )
    old = Journal(folder)
    if old.exists and old.plan().selection == selection:
        step_plan.attempts = max(attempts, old.plan().attempts)
    record = old.run() if old.exists else {"schema": bad_run.get("schema", 1), "created_at": utc_now().isoformat()}
    folder.mkdir(parents=True, exist_ok=True)
    run = {**record, "plan": step_plan.model_dump(mode="json"), "local": local, "sessions": record.get("sessions", [])}
    write_json(folder / "run.json", run)
