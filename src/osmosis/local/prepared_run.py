import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis.base.paths import cache_dir
from osmosis.base.redact import Redactor
from osmosis.bridges.export_process import Exports
from osmosis.bridges.export_stream import stored_run
from osmosis.datasets.scan import DatasetFacts, read_rows
from osmosis.engine.agent import Agent, LoopAgent, RecordedRollouts
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.journal import ARTIFACTS, Journal
from osmosis.engine.limits import START, Limiter
from osmosis.engine.load_agent import LoadedAgent, agent_of, close_scorers, load_agent, load_grading
from osmosis.engine.provenance import AgentFiles, folder_files
from osmosis.engine.resume import ResumePlan, apply
from osmosis.engine.scoring import Scorer
from osmosis.errors import Conflict, InteractiveRequired, OsmosisError, UsageError, ValidationError
from osmosis.llm import Model, Signals, open_model, probe
from osmosis.llm.cache import BranchModel
from osmosis.local.run import Run
from osmosis.local.run_options import RunOptions, server_key
from osmosis.local.workers import in_workers
from osmosis.metrics.planning import forecast
from osmosis.records.run.plan import RECORDING, EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rows import Row
from osmosis.sdk.score_functions import bounds_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutSource:
    kind: str  # `module`, `mcp`, `server`, `entrypoint` or `command`
    target: str
    environ: Mapping[str, str] = field(repr=False)
    agent: LoadedAgent | None = None
    files: tuple[Path, ...] = ()
    server_key: str | None = field(default=None, repr=False)
    base_dir: Path = Path()
    python: str = ""  # The one that starts an `entrypoint`

    @property
    def brings_reward(self) -> bool:
        return self.kind in ("server", "entrypoint") or (self.agent is not None and self.agent.graded)

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        return bounds_of(self.agent.backend.grader) if self.agent is not None and self.agent.backend else None

    @asynccontextmanager
    async def open(self, plan: EvalPlan, model: Model, artifacts: Path | None = None) -> AsyncIterator[Agent]:
        if self.kind == "mcp":
            from osmosis.sdk.mcp import mcp_agent  # hosts and tool loops: only an MCP folder or URL needs them

            async with mcp_agent(self.target, environ=self.environ, timeout_s=plan.timeouts.tool_s) as loop:
                yield LoopAgent(loop, plan)
        elif self.agent is not None and self.agent.loop is not None:
            yield self.agent.bind(plan)
        else:
            # A third of a second: most of the start of an agent loop, which needs no web framework.
            from osmosis.serve.client.remote import ModelProxy, ServerAt, check_key, served, started

            async with ModelProxy(model) as proxy:
                if self.kind == "command":
                    # Sandboxes and harnesses: only a command needs them.
                    from osmosis.serve.client.program_agent import GradedProgram, ProgramAgent

                    program = ProgramAgent(plan, proxy, self.base_dir, self.environ)
                    graders = None if self.agent is None else self.agent.bind(plan, artifacts=artifacts)
                    yield program if graders is None else GradedProgram(program, graders)
                    return
                if self.agent is not None:
                    yield self.agent.bind(plan, endpoints=proxy, artifacts=artifacts)
                    return
                if self.kind == "entrypoint":
                    async with (
                        started(self.python, Path(self.target), self.environ, log=log.info) as server,
                        served(ServerAt(server.url), proxy, plan, died=server.wait_died) as agent,
                    ):
                        yield agent
                    return
                await check_key(self.target, self.server_key)
                async with served(ServerAt(self.target, self.server_key), proxy, plan) as agent:
                    yield agent


def load_source(plan: EvalPlan, options: RunOptions) -> RolloutSource:
    base_dir, environ = options.base_dir, options.environ
    if options.agent is not None:
        agent = agent_of(options.agent, plan.agent, base_dir, grader=options.grader)
        return RolloutSource("module", plan.agent, environ, agent, tuple(agent.files))
    kind, target = agent_kind(plan.agent)
    if kind == "server":
        return RolloutSource(kind, target, environ, server_key=server_key(options.server_key_env, environ))
    if kind == "command":
        folders = plan.program.folders(base_dir).values()
        files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        grading = load_grading(plan.program.grader, base_dir) if plan.program.grader else None
        files += grading.files if grading is not None else []
        return RolloutSource(kind, target, environ, grading, tuple(files), base_dir=base_dir)
    if kind == "module" and options.server_python:
        entry = base_dir / target
        files = sorted(entry.parent.rglob("*.py"))
        return RolloutSource("entrypoint", str(entry), environ, files=tuple(files), python=options.server_python)
    if kind == "module":
        agent = load_agent(target, base_dir, grader=options.grader)
        return RolloutSource(kind, target, environ, agent, tuple(agent.files))
    if "://" in target:
        return RolloutSource(kind, target, environ)
    folder = base_dir / target
    if not folder.exists():
        raise ValidationError(f"there is no MCP folder {folder}", hint="--mcp DIR or URL")
    return RolloutSource(kind, str(folder), environ, files=tuple(folder_files(folder) if folder.is_dir() else [folder]))


def agent_kind(agent: str) -> tuple[str, str]:
    kind, _, target = agent.partition(":")
    if kind == "server" and target.startswith(("http://", "https://")):
        return kind, target
    if (kind == "mcp" and "/" in target) or (kind == "command" and target):
        return kind, target
    return "module", agent


_FILES_EVERY_S = 2.0


class Declined(OsmosisError): ...


@dataclass(frozen=True)
class PreparedRun:
    plan: EvalPlan
    options: RunOptions
    source: RolloutSource | None
    scorers: tuple[Scorer, ...]
    facts: DatasetFacts
    hashes: Mapping[str, str]
    resume: ResumePlan
    journal: Journal | None
    redactor: Redactor
    files: AgentFiles | None = None
    key: str | None = field(default=None, repr=False)
    baselines: "tuple[PreparedRun, ...]" = ()

    @property
    def asks_model(self) -> bool:
        return self.source is not None and bool(self.resume.owed or len(self.resume.rerun) or len(self.resume.retry))

    @property
    def remarks(self) -> list[str]:
        lines = []
        if self.facts.bad and self.source is not None:
            problems = "; ".join(map(str, self.facts.bad[:3]))
            lines.append(f"invalid rows skipped ({self.facts.bad_count}): {problems}")
        columns = {"system_prompt", "messages"}.intersection(self.facts.columns)
        if self.source is not None and self.source.agent is not None and self.source.agent.loop and not columns:
            lines.append("the rows have no system_prompt, which an agent loop usually begins with")
        if self.journal is not None and self.source is not None and (damage := self.journal.damage()):
            lines.append(damage)
        resume = self.resume
        if self.source is not None and (resume.reuse or resume.drifted or len(resume.retry)):
            lines.append(f"run {self.plan.name}: {resume.line()}")
        if self.source is not None and (used_up := self._used_up()):
            fix = "a larger --max-cost or --max-tokens-total continues the run"
            lines.append(f"{used_up}: no rollout is started; {fix}")
        for other in self.baselines:
            lines += [self.redactor.text(line) for line in other.remarks]
        return [self.redactor.text(line) for line in lines]

    def _used_up(self) -> str | None:
        if self.resume.stored is None or not self.resume.owed:
            return None
        stored = self.resume.stored.summary
        return self.plan.budget.used_up(stored.total_cost_usd or 0.0, stored.total_tokens)

    def agree(self) -> None:
        for prepared in (self, *self.baselines):
            if prepared.source is None or not prepared.resume.drifted:
                continue
            if self.options.confirm is None:
                message = f"the inputs of run {prepared.plan.name} have changed: {prepared.resume.line()}"
                hint = "pass --yes (accept_changes=True in Python), or use another name to start a new run"
                raise Conflict(message, hint=hint, resume=prepared.resume.to_dict())
            if not self.options.confirm("Continue with this plan?"):
                raise Declined("cancelled; nothing was changed")

    def rows(self) -> Iterator[Row]:
        return rows_of(self.options.dataset(self.plan), self.plan, self.facts)

    def open_model(self, signals: Signals | None = None) -> Model:
        model = open_model(
            self.plan.model,
            api_key=self.key,
            retry=self.plan.retry,
            timeout_s=self.plan.timeouts.model_s,
            cache_dir=cache_dir(self.options.environ) / "answers" if self.plan.cache else None,
            signals=signals,
        )
        folder = self.options.folder(self.plan)
        if self.plan.branch is None or folder is None:
            return model
        recorded = RecordedRollouts(folder / RECORDING)
        return BranchModel(model, self.plan.branch, recorded.read(next(iter(recorded.offsets))))

    def open_agent(self, model: Model) -> AbstractAsyncContextManager[Agent]:
        assert self.source is not None
        folder = self.options.folder(self.plan)
        return self.source.open(self.plan, model, None if folder is None else folder / ARTIFACTS)

    @property
    def in_workers(self) -> bool:
        return self.options.workers > 1 and self.asks_model

    def _open_agent(self, model: Model | None, limiter: Limiter) -> AbstractAsyncContextManager[Agent | None]:
        if model is None:
            return nullcontext()
        if not self.in_workers:
            return self.open_agent(model)
        return in_workers(self.plan, self.options, limiter=limiter if limiter.adaptive else None)

    async def run(self, stop: asyncio.Event | None = None) -> Run:
        """Run this, then its baselines; a baseline that fails does not keep the others from running."""
        if self.journal is None:
            raise UsageError("a run without a journal only has a report")
        stop = stop or asyncio.Event()
        exports = Exports(self.options.export)
        try:
            report = await self.report(stop, exports)
        except BaseException:
            exports.end()
            raise
        others: dict[str, Run | OsmosisError] = {}
        for baseline in self.baselines if not report.stopped else ():
            if stop.is_set():
                break
            model = baseline.plan.model
            key = model.name if model.name not in others else f"{model.name}@{model.base_url or baseline.plan.name}"
            self.options.watcher.say(self.redactor.text(f"baseline {key}: run {baseline.plan.name}"))
            try:
                others[key] = await baseline.run(stop)
            except OsmosisError as error:
                others[key] = error
        # Failures quote what agents and score functions said.
        safe = Report.model_validate(self.redactor.data(report.to_dict())) if self.redactor else report
        for target, problem in await asyncio.to_thread(lambda: [*exports.close()]):
            again = f"osmosis eval export {self.plan.name} --format {target.flags}"
            self.options.watcher.say(self.redactor.text(f"{problem}; to send all again: {again}"), keep=True)
        return Run(self.journal.folder, self.plan, safe, others)

    async def report(self, stop: asyncio.Event | None = None, exports: Exports | None = None) -> Report:
        """Run this alone and return its figures; secrets are redacted in what it raises."""
        limiter = Limiter(self.plan.concurrency, adaptive=self.plan.adaptive)
        model = self.open_model(limiter if limiter.adaptive else None) if self.source is not None else None
        try:
            async with self._open_agent(model, limiter) as agent:
                for prepared in (self, *self.baselines):
                    await prepared._probe(model if prepared is self else None)
                return await self._evaluate(agent, model, stop or asyncio.Event(), limiter, exports)
        except OsmosisError as error:
            # An endpoint or a rollout server may say our key back to us.
            for redactor in (self.redactor, *(other.redactor for other in self.baselines)):
                error.message = redactor.text(error.message)
                error.details = redactor.data(error.details)
            raise
        finally:
            if self.journal is not None:
                self.journal.close()
            if model is not None:
                await model.close()
            await close_scorers(self.scorers)

    def close(self) -> None:
        for prepared in (self, *self.baselines):
            if prepared.journal is not None:
                prepared.journal.close()

    async def _evaluate(
        self, agent: Agent | None, model: Model | None, stop: asyncio.Event, limiter: Limiter, exports: Exports | None
    ) -> Report:
        resume, plan, journal, options = self.resume, self.plan, self.journal, self.options
        if journal is not None:
            if resume.pending:
                await apply(resume, journal, plan, self.rows(), self.scorers, self.hashes)
            facts = {"local": options.facts(plan), "rows": self.facts.selected}
            journal.open(plan, facts={**facts, **self._known_files(journal)})
            if exports is not None:
                exports.start(stored_run(journal), lambda _: options.environ, options.base_dir)
        evaluation = Evaluation(
            plan,
            self.rows(),
            agent,
            model=model,
            scorers=() if self.in_workers else self.scorers,
            journal=journal,
            observer=options.watcher,
            stop=stop,
            selected=self.facts.selected,
            dataset_rows=self.facts.rows,
            hashes=self.hashes,
            score_names=[scorer.name for scorer in self.scorers] if self.in_workers else (),
            limiter=limiter,
        )
        if options.pilot is None or not resume.owed:
            evaluation.stored = resume.stored
        elif resume.owed > options.pilot and not resume.reuse:
            await self._pilot(options.pilot, evaluation)
        looking = asyncio.create_task(self._note_files())
        try:
            return await evaluation.run()
        finally:
            looking.cancel()
            if journal is not None and journal.is_open:
                journal.note(**self._known_files(journal))

    def _known_files(self, journal: Journal) -> dict[str, object]:
        if self.files is None:
            return {}
        stored = journal.run().get("files") or {} if journal.exists else {}
        changed = self.resume.files
        by_part = {
            part: {name: mark for name, mark in files.items() if name not in changed.get(part, ())}
            for part, files in stored.items()
        }
        return {"files": {part: {**by_part.get(part, {}), **digests} for part, digests in self.files.now().items()}}

    async def _note_files(self) -> None:
        journal, count = self.journal, 0
        while journal is not None and self.files is not None:
            await asyncio.sleep(_FILES_EVERY_S)
            if count != (count := self.files.count_files()):
                journal.note(**self._known_files(journal))

    async def _pilot(self, size: int, evaluation: Evaluation) -> None:
        plan, journal, stop = self.plan, self.journal, evaluation.stop
        if journal is None:
            raise UsageError("a pilot needs a journal: its rollouts are part of the run")
        keys = [row.key or "" for row in self.rows()]
        only = {(0, key, 0) for key in random.Random(plan.selection.seed).sample(keys, min(size, len(keys)))}
        await replace(evaluation, rows=self.rows(), observer=Observer(), dataset_rows=None, only=only).run()
        measured = list(journal.rollouts())
        left = self.facts.selected * plan.attempts - len(measured)
        estimate = forecast(measured, left, START if plan.adaptive else plan.concurrency, plan.attempts)
        journal.note(forecast=estimate.to_dict())
        self.options.watcher.say(self.redactor.text(f"pilot: {estimate.line()}"))
        if stop.is_set():
            return
        question, confirm = "Run the rest?", self.options.confirm
        if confirm is None:
            message = f"this needs an answer, and there is no terminal to ask on: {question}"
            raise InteractiveRequired(message, hint="pass --yes", prompt=question)
        # In a thread: a prompt runs an event loop of its own.
        if not await asyncio.to_thread(confirm, question):
            stop.set()

    async def _probe(self, model: Model | None) -> None:
        if not self.asks_model:
            return
        probed = model or self.open_model()
        try:
            answer = await probe(probed)
        finally:
            if model is None:
                await probed.close()
        budget, limits = self.plan.budget, self.plan.limits
        by_flag = {
            "--max-cost": budget.max_cost_usd,
            "--max-tokens-total": budget.max_total_tokens,
            "--max-cost-per-rollout": limits.max_cost_usd,
            "--max-tokens-per-rollout": limits.max_tokens,
        }
        flag = next((flag for flag, limit in by_flag.items() if limit is not None), None)
        if answer is None or flag is None:
            return
        if not answer.usage.total_tokens and not answer.usage.cost_usd:
            message = f"{self.plan.model.name} does not report token usage, so {flag} cannot be enforced"
            raise ValidationError(message, hint="limit rows or time instead: --limit, --run-timeout")


def rows_of(dataset: Path, plan: EvalPlan, facts: DatasetFacts) -> Iterator[Row]:
    rows = facts.kept_rows()
    if rows is not None:
        return rows
    skip_bad, required = plan.skip_bad_rows, plan.require_ground_truth
    return read_rows(dataset, plan.selection, skip_bad=skip_bad, require_ground_truth=required, by_id=facts.by_id)
