"""Seal a run and verify the file. It is a zip: `manifest.json`, the journal line for line, and what else was included.
Its comment, the last 64 bytes, is the sha256 of all bytes before it. The rollouts are held in memory."""

import asyncio
import gc
import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import accumulate, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from pydantic import Field

from osmosis._version import __version__
from osmosis.base.files import write_bytes
from osmosis.base.git import Git
from osmosis.base.jsonable import JsonObject, iterate_leaves
from osmosis.client import PlatformClient
from osmosis.datasets.scan import read_rows
from osmosis.engine.agent import RecordedAgent
from osmosis.engine.evaluate import Evaluation
from osmosis.engine.journal import Journal
from osmosis.engine.output.upload import public_provenance
from osmosis.engine.provenance import hash_file, score_hash
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import Conflict, LoadError, OsmosisError, UsageError
from osmosis.llm.cache import find_parting
from osmosis.local.prepare import load_scorers_of, prepare
from osmosis.local.prepared_run import agent_kind
from osmosis.local.run import stored_report
from osmosis.local.run_options import RunOptions, Watcher
from osmosis.local.viewing.library import config_of
from osmosis.metrics.summary import Summary
from osmosis.records.base import Record
from osmosis.records.run.plan import Budget, EvalPlan, ModelSpec, Retry, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Rollout, RolloutStatus, Score
from osmosis.sdk.foreign import is_foreign
from osmosis.sdk.user_code import run_main

MANIFEST, JOURNAL, LOCK = "manifest.json", "journal.jsonl", "uv.lock"
Rollouts = Sequence[Rollout]
Figure = tuple[str, object, object]
_DIGEST = 64
MAX_BYTES = 2 << 30


class SealManifest(Record):
    osmosis: str
    plan: EvalPlan
    report: Report
    hashes: dict[str, list[str]] = Field(default_factory=dict)
    files: dict[str, dict[str, str]] = Field(default_factory=dict)
    grader: str | None = None
    rollout: str | None = None
    chain: list[str] = Field(default_factory=list)  # hash chain over the journal: a mark after each line


class Verification(Record):
    run: str
    commit: str | None
    sha256: str
    rollouts: int = 0
    figures: int = 0
    graded: int = 0
    replayed: int = 0
    differing: int = 0
    differences: list[JsonObject] = Field(default_factory=list)
    """The first hundred: `where` (check and place), `sealed` and `now`."""
    not_checked: list[str] = Field(default_factory=list)

    def differ(self, where: str, sealed: object, now: object) -> None:
        self.differing += 1
        self.differences = [*self.differences, {"where": where, "sealed": sealed, "now": now}][:100]


def seal_local(journal: Journal, path: Path) -> str:
    """Write the file and return its sha256."""
    plan, report, facts, name = journal.plan(), stored_report(journal), journal.run(), journal.folder.name
    if report is None:
        raise Conflict(f"run {name} has not ended", hint=f"osmosis eval resume {name}")
    local, files = facts.get("local") or {}, facts.get("files") or {}
    plan = plan.model_copy(update={"name": name, "provenance": public_provenance(plan)})
    manifest = SealManifest(osmosis=__version__, plan=plan, report=report, files=files)
    manifest.grader, manifest.rollout = local.get("grader"), local.get("rollout")
    lock = Path(local.get("base_dir") or "", "rollouts", manifest.rollout or "", LOCK)
    members = {LOCK: lock.read_bytes()} if lock.is_file() else {}
    return _write(path, manifest, list(journal.rollouts()), members)


def seal_remote(client: PlatformClient, name: str, path: Path) -> str:
    detail = client.evals.get(name)
    if detail.report is None or not detail.run.over:
        raise Conflict(f"run {name} has not ended", hint=f"osmosis eval wait {name}")
    experiment, git = config_of(detail).experiment, {"git": {"commit": detail.commit_sha, "branch": detail.branch}}
    plan = EvalPlan.from_config(config_of(detail), name=name, dataset=experiment.dataset, provenance=git)
    manifest = SealManifest(osmosis=__version__, plan=plan, report=detail.report, rollout=experiment.rollout)
    rollouts = [rollout for page in client.evals.arrived(name, after=0) for rollout in page.outcomes]
    return _write(path, manifest, rollouts, {})


def _write(path: Path, manifest: SealManifest, rollouts: Rollouts, members: dict[str, bytes]) -> str:
    report, _, wrong = recompute(rollouts, manifest, all_names=False)
    if wrong:
        message = "the report is not what the journal adds up to: {} is {}, not {}".format(*wrong[0])
        raise Conflict(message, hint=f"osmosis eval resume {manifest.plan.name} writes it again")
    for part in ("agent", "sampling", "score"):
        manifest.hashes[part] = sorted({rollout.hashes[part] for rollout in rollouts if part in rollout.hashes})
    lines = [rollout.to_line() for rollout in rollouts]
    manifest.report, manifest.chain = report, [*accumulate(lines, extend_chain, initial="")]
    text, draft = orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2), BytesIO()
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"0" * _DIGEST
        for name, content in {MANIFEST: text, JOURNAL: b"".join(lines), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # without the time
    sealed = draft.getvalue()[:-_DIGEST]
    sealed += hashlib.sha256(sealed).hexdigest().encode()
    write_bytes(path, sealed, durable=True)
    return hashlib.sha256(sealed).hexdigest()


def extend_chain(mark: str, line: bytes) -> str:
    return hashlib.sha256(mark.encode() + line).hexdigest()[:16]


def recompute(rollouts: Rollouts, manifest: SealManifest, *, all_names: bool) -> tuple[Report, int, list[Figure]]:
    """Return the report, computed again but for what no rollout holds, its number of figures, and those that differ."""
    sealed, summary = manifest.report, Summary(manifest.plan, score_names=manifest.plan.score_fns)
    for rollout in rollouts:
        summary.add(rollout)
    rows = sealed.rows if sealed.stopped else len({rollout.row_index for rollout in rollouts})
    others = {"duration_ms": sealed.duration_ms, "dataset_rows": sealed.dataset_rows, "stopped": sealed.stopped}
    report = summary.report(rows=rows).model_copy(update=others)
    then, now = (dict(iterate_leaves(_list_figures(figures.to_dict()))) for figures in (sealed, report))
    figures = [(name, then.get(name), now.get(name)) for name in (then | now if all_names else then)]
    return report, len(figures), [figure for figure in figures if figure[1] != figure[2]]


def _list_figures(value: object) -> object:
    if isinstance(value, list):
        value = {str(item.get("name", i) if isinstance(item, dict) else i): item for i, item in enumerate(value)}
    if isinstance(value, dict):
        return {name: _list_figures(item) for name, item in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value  # the last digits are those of a machine


class SealFile:
    def __init__(self, path: Path) -> None:
        try:
            self.content = path.read_bytes()
            with zipfile.ZipFile(BytesIO(self.content)) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                    raise ValueError(f"unpacked, it has more than {MAX_BYTES >> 30} GiB")
                self.members = {name: archive.read(name) for name in archive.namelist()}
            self.manifest = SealManifest.model_validate_json(self.members[MANIFEST])
            self.journal = self.members[JOURNAL]
        except Exception as error:  # any byte of it may be wrong, in any way
            text = getattr(error, "strerror", None) or error
            raise UsageError(f"{path} cannot be read as a sealed run: {text}", hint="osmosis eval seal RUN") from error


def verify(path: str | Path, *, code: str | Path | None = None) -> Verification:
    """Check a sealed run: bytes, journal, report, and with the folder `code` its scores and conversations, too."""
    seal = SealFile(Path(path))
    manifest, lines = seal.manifest, seal.journal.splitlines(keepends=True)
    commit = (manifest.plan.provenance.get("git") or {}).get("commit")
    result = Verification(run=manifest.plan.name, sha256=hashlib.sha256(seal.content).hexdigest(), commit=commit)
    digest = hashlib.sha256(seal.content[:-_DIGEST]).hexdigest()
    if seal.content[-_DIGEST:] != digest.encode():
        result.differ("file: sha256 of its bytes", str(seal.content[-_DIGEST:]), digest)
    for number, (then, now) in enumerate(zip_longest(manifest.chain, accumulate(lines, extend_chain, initial=""))):
        if then != now:
            result.differ(f"journal: line {number}: {lines[max(number - 1, 0) : number]!s:.80}", then, now)
            break
    is_changed = bool(result.differing)
    with TemporaryDirectory(prefix="osmosis-verify-") as folder:
        journal = Journal(Path(folder))
        journal.rollouts_path.write_bytes(seal.journal)
        rollouts = list(journal.rollouts())
        report, result.figures, wrong = recompute(rollouts, manifest, all_names=manifest.osmosis == __version__)
        result.rollouts = report.completed
        for name, then, now in wrong:
            result.differ(f"report: {name}", then, now)
        if code is not None and not is_changed:
            _Recheck(seal, rollouts, journal.folder, Path(code).resolve(), result).run()
        else:
            reason = "the file was changed after it was sealed" if is_changed else "no code was given"
            result.not_checked.append(f"scores and conversations: {reason}")
    return result


@dataclass
class _Recheck(Watcher):
    seal: SealFile
    rollouts: Rollouts
    recording: Path
    code: Path
    result: Verification

    def run(self) -> None:
        gc.freeze()  # the recorded rollouts stay: the collector need not look at them with every new one
        manifest, self.unable, self.is_replay = self.seal.manifest, Counter[str](), True
        self.left = {rollout.place: rollout for rollout in self.rollouts}
        options = RunOptions(self.code, None, os.environ, grader=manifest.grader, needs_scores=False, watcher=self)
        changes: JsonObject = {"concurrency": 64, "adaptive": False, "budget": Budget()}
        changes["retry"] = Retry(breaker_after=len(self.rollouts) + 1)
        changes["model"] = ModelSpec(name=str(self.recording), kind="replay", params=manifest.plan.model.params)
        changes["selection"] = Selection(rows=sorted({rollout.row_index for rollout in self.rollouts}))
        dataset = self.code / manifest.plan.dataset
        dataset = dataset if dataset.is_file() else next(self.code.glob(f"data/{dataset.name}.*"), dataset)
        plan = manifest.plan.model_copy(update={**changes, "dataset": str(dataset)})
        self.functions = plan.score_fns = self._choose_functions(plan, options)
        for kind, run in (("conversations, and rewards of a grader", self._replay), ("scores", self._grade)):
            try:
                asyncio.run(run_main(run(plan, options)))
            except OsmosisError as error:
                self.unable[f"{kind}: {error.message}"] += len(self.rollouts)
            self.is_replay = False
        gc.unfreeze()
        self.result.not_checked += [f"{count} {reason}" for reason, count in self.unable.items()]

    def _choose_functions(self, plan: EvalPlan, options: RunOptions) -> list[str]:
        functions: list[str] = []
        judged = {name for rollout in self.rollouts for name, score in rollout.scores.items() if score.usage}
        for function in plan.score_fns:
            try:
                if function.startswith("rubric:") or any(f"{name}.".startswith(f"{function}.") for name in judged):
                    raise LoadError("a judge is not asked again, its scores stand as recorded")
                self._check_inside(function)
                load_scorers_of(plan.model_copy(update={"score_fns": [function]}), options)
                functions.append(function)
            except OsmosisError as error:
                self.unable[f"scores of {function}: {error.message}"] += len(self.rollouts)
        if functions and functions == plan.score_fns:
            self._compare_code("score", score_hash(functions, self.code))
        return functions

    def _check_inside(self, name: str) -> None:
        file = name.partition(":")[0]  # the sealed file names it, but whoever verifies has chosen the folder
        is_outside = file.endswith(".py") and not (self.code / file).resolve().is_relative_to(self.code)
        if is_outside or agent_kind(name)[0] != "module" or is_foreign(name):
            raise LoadError(f"{name} is not in {self.code}")

    def _compare_code(self, part: str, now: str) -> None:
        manifest, commit = self.seal.manifest, self.result.commit or ""
        sealed, files = manifest.hashes[part], manifest.files.get(part, {})
        changed = [file for file, digest in files.items() if hash_file(self.code / file) != digest]
        if part == "agent" and sealed == [commit] and commit.isalnum():  # of a platform
            diff = Git(self.code).text("diff", "--name-only", commit, "--", f"rollouts/{manifest.rollout}")
            changed, now = diff.splitlines(), f"{commit} and changes" if diff else commit
        if sealed not in ([], [now]):
            self.result.differ(f"code: {part} ({', '.join(changed) or 'as a whole'})", ", ".join(sealed), now)

    async def _replay(self, plan: EvalPlan, options: RunOptions) -> None:
        for name in filter(None, (plan.agent, options.grader)):
            self._check_inside(str(name))
        prepared = prepare(plan, options)
        self._compare_code("agent", prepared.hashes["agent"])
        await prepared.report()

    async def _grade(self, plan: EvalPlan, options: RunOptions) -> None:
        keys = {rollout.row_index: rollout.row_key for rollout in self.left.values()}
        if keys and self.functions:
            rows = read_rows(options.dataset(plan), Selection(rows=sorted(keys)), skip_bad=True)
            keyed = [replace(row, key=keys[row.index]) for row in rows]
            agent, scorers = RecordedAgent(self.recording), load_scorers_of(plan, options)
            await Evaluation(plan, keyed, agent, scorers=scorers, observer=self, hashes={"score": ""}).run()

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        was, failure = self.left.get(rollout.place), rollout.failure
        if was is None or not (self.is_replay or was.status is RolloutStatus.SUCCESS):
            return
        where, parting = f"row {was.row_index} attempt {was.attempt}", find_parting(was.messages, rollout.messages)
        if was.hashes.get("row") not in (None, rollout.hashes["row"]):
            self.result.differ(f"dataset: {where}", was.hashes["row"], rollout.hashes["row"])
            del self.left[was.place]
        elif self.is_replay and not _is_replayable(was):
            self.unable["conversations that ended from outside, or are not one for all calls"] += 1
        elif parting is None and was.status is rollout.status:
            self.result.replayed += self.is_replay
            self._compare_scores(was, rollout, where)
            del self.left[was.place]
        elif failure is not None and _is_outside(failure):
            self.unable[f"conversations: {failure.message}"] += 1
        else:
            ends = [[*other.messages[parting:][:1], other.status.value] for other in (was, rollout)]
            self.result.differ(f"conversation: {where} message {parting}", *ends)

    def _compare_scores(self, was: Rollout, rollout: Rollout, where: str) -> None:
        functions = tuple(f"{name}." for name in [*self.functions, *[REWARD] * self.is_replay])
        names = [name for name in was.scores | rollout.scores if f"{name}.".startswith(functions)]
        self.result.graded += bool(names)
        for name in names:
            score = rollout.scores.get(name) or rollout.scores.get(name.rpartition(".")[0])  # which failed
            then, now = _read_outcome(was.scores.get(name)), _read_outcome(score)
            if score is not None and score.failure is not None and then != now and _is_outside(score.failure):
                self.unable[f"scores of {name}: {score.failure.message}"] += 1
            elif then != now:
                self.result.differ(f"score: {where} {name}", then, now)


def _is_replayable(rollout: Rollout) -> bool:
    failed = rollout.failure is not None and rollout.failure.category is not Category.AGENT_ERROR
    answers = sum(message.get("role") == "assistant" for message in rollout.messages)
    calls = sum(call.error is None for call in rollout.calls)
    return not failed and 0 < calls <= answers and rollout.finish_reason not in ("max_time", "max_cost")


def _is_outside(failure: Failure) -> bool:
    is_infrastructure = failure.category.is_infrastructure and failure.category is not Category.BAD_REQUEST
    return is_infrastructure or "--offline: connection" in f"{failure.message} {failure.traceback}"


def _read_outcome(score: Score | None) -> object:
    if score is not None and score.failure is not None:
        return f"failed: {score.failure.category.value}"
    return {"value": score.value, **score.parts} if score and score.parts else score and score.value
