"""`osmosis test`: exits with 0 when every row succeeded, with 1 when one failed; nothing is stored."""

import asyncio
import json
import signal
import threading
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TextIO

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from osmosis.base.files import write_text
from osmosis.base.jsonable import JsonObject
from osmosis.cli.agents import AgentRef, find_agent
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.output import Mode, Output
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import DetailResult, Result, clean, format_tokens
from osmosis.cli.eval import flags as eval_flags
from osmosis.cli.eval.plan import build_plan, config_model
from osmosis.cli.eval.progress import let_through
from osmosis.cli.eval.run import apply_environment
from osmosis.cli.eval.show import count_noun, draw_message, draw_rollout
from osmosis.engine.evaluate import Attempts
from osmosis.engine.task import Task
from osmosis.errors import InteractiveRequired, ModelError, UsageError, ValidationError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.local.prepare import prepare
from osmosis.local.prepared_run import PreparedRun
from osmosis.local.run_options import RunOptions, Watcher, runs_folder
from osmosis.metrics.formats import duration
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Message, Rollout
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import trace_folder
from osmosis.sdk.foreign import is_foreign

STEP_HELP = "n next (Enter)   c continue to the end   m messages   t tools   q quit this row"


class Prompt:
    def __init__(self, ctx: AppContext) -> None:
        self._stdin = ctx.stdin
        self.console: Console = ctx.output.console()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(clean(text), style=style))

    async def ask(self, question: str) -> str | None:
        self.console.print(Text(f"{question} > ", style="bold"), end="")
        line = _read_line(self._stdin)
        return line.strip() if line else None

    def messages(self, messages: list[Message]) -> None:
        for message in messages:
            self.message(message)

    def message(self, message: Message, title: str | None = None) -> None:
        draw_message(self.console, message, title)

    def tools(self, tools: list[JsonObject] | None) -> None:
        if not tools:
            self.say("no tools are on offer", "dim")
        for tool in tools or []:
            function = tool.get("function") or {}
            properties = (function.get("parameters") or {}).get("properties") or {}
            listed = ", ".join(f"{name}: {json.dumps(sub.get('type'))}" for name, sub in properties.items())
            self.say(f"{function.get('name')}({listed})", "bold")
            if function.get("description"):
                self.say(f"  {function['description']}", "dim")


def _read_line(stdin: TextIO) -> str:
    """Read one line, blocking the event loop on purpose; Ctrl-C counts as the end of input."""
    if threading.current_thread() is not threading.main_thread():
        return stdin.readline()
    # asyncio's own handler would only mark the task as cancelled and let the read go on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return stdin.readline()
    except KeyboardInterrupt:
        return ""
    finally:
        signal.signal(signal.SIGINT, before)


class SteppedModel:
    def __init__(self, inner: Model, prompt: Prompt) -> None:
        self._inner = inner
        self._prompt = prompt
        self._running = False
        self.turn = 0
        self.aborted = False
        self.spec = inner.spec

    def restart(self) -> None:
        self._running, self.turn, self.aborted = False, 0, False

    async def complete(self, request: ChatRequest) -> Completion:
        if self.aborted:
            raise _left()
        new = [m for m in request.messages[-8:] if m.get("role") == "tool"] if self.turn else request.messages
        for message in new:
            self._prompt.message(message)
        completion = await self._inner.complete(request)
        self.turn += 1
        self._prompt.message(completion.message, f"turn {self.turn}, {completion.finish_reason or 'no finish reason'}")
        if not self._running:
            await self._step(request, completion)
        return completion

    async def close(self) -> None:
        await self._inner.close()

    async def _step(self, request: ChatRequest, completion: Completion) -> None:
        while True:
            answer = await self._prompt.ask("n, c, m, t, q")
            key = "q" if answer is None else answer.lower()
            if key in ("", "n", "next"):
                return
            if key in ("c", "continue"):
                self._running = True
                return
            if key in ("m", "messages"):
                self._prompt.messages([*request.messages, completion.message])
            elif key in ("t", "tools"):
                self._prompt.tools(request.tools)
            elif key in ("q", "quit", "exit"):
                self.aborted = True
                raise _left()
            else:
                self._prompt.say(STEP_HELP, "dim")


def _left() -> ModelError:
    return ModelError("the row was left by the person stepping through it", category=Category.CANCELLED.value)


def step_through(ctx: AppContext, prepared: PreparedRun, label: str, row: int | None) -> int:
    if ctx.mode is not Mode.RICH:
        raise InteractiveRequired("--interactive needs a terminal", hint="remove --json and --plain")
    try:
        asyncio.run(_session(ctx, prepared, label, row))
    except KeyboardInterrupt:
        ctx.output.say("left", style="dim")
    return 0


async def _session(ctx: AppContext, prepared: PreparedRun, label: str, row_index: int | None) -> None:
    rows = {row.index: row for row in prepared.rows()}
    prompt = Prompt(ctx)
    model = SteppedModel(prepared.open_model(), prompt)
    prompt.say(f"{label}, model {prepared.plan.model.name}; rows {min(rows)} to {max(rows)}", "bold")
    prompt.say(STEP_HELP, "dim")
    try:
        async with prepared.open_agent(model) as agent:
            attempts = Attempts(prepared.plan, agent, model, (), say=prompt.say)
            while True:
                if row_index is None:
                    row_index = await _choose(prompt, rows)
                    if row_index is None:
                        return
                row = rows.get(row_index)
                if row is None:
                    prompt.say(f"there is no row {row_index}: rows {min(rows)} to {max(rows)} are loaded", "red")
                else:
                    await _step_row(prompt, model, attempts, row)
                row_index = None
    finally:
        await model.close()


async def _choose(prompt: Prompt, rows: dict[int, Row]) -> int | None:
    while True:
        answer = await prompt.ask(f"row {min(rows)}-{max(rows)}, or q")
        if answer is None or answer.lower() in ("q", "quit", "exit"):
            return None
        words = answer.lower().split()
        if words and words[0] in ("r", "row"):
            words = words[1:]
        if len(words) == 1 and words[0].isdigit():
            return int(words[0])
        prompt.say("a row number, r N, or q to leave", "dim")


async def _step_row(prompt: Prompt, model: SteppedModel, attempts: Attempts, row: Row) -> None:
    model.restart()
    prompt.say(f"row {row.index}", "bold")
    rollout: Rollout = await attempts.run(Task(row=row, attempt=0, rollout_id=f"test-{row.index}"))
    if model.aborted:
        prompt.say("left this row", "yellow")
        return
    good = rollout.failure is None
    took = f"{duration(rollout.duration_ms)}, {format_tokens(rollout.usage.total_tokens)} tokens"
    outcome = f"{'ended' if good else 'failed'}: {rollout.finish_reason or 'no finish reason'} ({took})"
    prompt.say(outcome, "green" if good else "red")
    if rollout.failure is not None:
        prompt.say(f"  {rollout.failure.message}", "red")
    for score in rollout.scores.values():
        prompt.say(f"  {score.name}: {score.value if score.failure is None else score.failure.message}")
    answer = await prompt.ask("m for all messages, Enter to go on")
    if answer and answer.lower() in ("m", "messages"):
        prompt.messages(rollout.messages)


DEFAULT_MODEL = "gpt-5-mini"
SHOWN_WHOLE = 5  # Number of rows up to which whole conversations are shown; more rows get one line each
DEBUG_FOLDER = "test_debug"


@dataclass(frozen=True)
class TestFlags:
    __test__ = False  # not a test case, whatever pytest makes of its name

    rollout: Annotated[
        str | None,
        Argument(metavar="NAME", help="A rollout here, or module:attribute.", autocompletion=completion.rollouts),
    ] = None
    module: eval_flags.Module = None
    mcp: eval_flags.Mcp = None
    dataset: eval_flags.Dataset = None
    eval_fn: eval_flags.EvalFn = field(default_factory=list)
    rubric: eval_flags.Rubric = field(default_factory=list)
    model: Annotated[str | None, Option(help=f"Model [default: the rollout's, else {DEFAULT_MODEL}].")] = None
    base_url: eval_flags.BaseUrl = None
    api_key: eval_flags.ApiKey = None
    api_key_env: eval_flags.ApiKeyEnv = None
    param: eval_flags.Param = field(default_factory=list)
    timeout: Annotated[float | None, Option(help="Seconds per row [450].", hidden=True)] = None
    debug: Annotated[bool, Option(help=f"Keep traces and conversations in ./{DEBUG_FOLDER}.")] = False
    output: Annotated[Path | None, Option("--output", "-o", help="Write the results as JSON.")] = None
    brief: Annotated[bool, Option("--brief", "-b", help="One line per row, without the conversation.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print neither the rows nor the summary.")] = False
    interactive: Annotated[bool, Option("--interactive", "-i", help="Step through one row at a time.")] = False
    row: Annotated[int | None, Option(help="With --interactive: start with this row.")] = None
    settings: dict[str, Any] = field(default_factory=dict)


_SHARED = (
    *("limit", "offset", "skip_bad_rows", "batch_size", "max_turns", "max_tokens", "temperature", "top_p", "seed"),
    "agent_timeout",
)


@takes(
    TestFlags,
    eval_flags.plan_parameters(
        *_SHARED, hidden=["offset", "batch_size", "max_tokens", "temperature", "seed", "max_turns"]
    ),
)
def test(flags: TestFlags) -> Result | int:
    """Run an agent on rows, one attempt each, and show each conversation with its score. Nothing is kept.

    A rollout of the workspace runs as its eval config says: model, endpoint, parameters, variables, grader.

    Example:
        osmosis test multiply --limit 3
        osmosis test -m server:agent_loop -d test_data.jsonl --eval-fn rewards:exact --model openai/gpt-5-mini
        osmosis test -m server:agent_loop -d test_data.jsonl --model offline/calculator -i --row 2
    """
    ctx = current()
    ref = find_agent(ctx, flags.rollout, flags.module, flags.mcp)
    if flags.row is not None and not flags.interactive:
        raise UsageError("--row only works with --interactive", hint="use --offset and --limit, or add --interactive")
    target = ctx.path(flags.output) if flags.output else None
    if target is not None and target.is_dir():
        raise ValidationError(f"--output: {target} is a folder", hint="name a file in it")
    plan = _plan(ctx, flags, ref)
    if flags.interactive:
        # A person's thinking is not the agent's time.
        plan.timeouts = plan.timeouts.model_copy(update={"agent_s": None, "score_s": None})
    options = RunOptions(
        ref.base_dir, None, ctx.environ, api_key=flags.api_key, server_python=ref.python, needs_scores=False
    )
    prepared = prepare(plan, options)
    let_through(ctx, prepared)
    if flags.interactive:
        return step_through(ctx, prepared, ref.label, flags.row)
    return _batch(ctx, prepared, ref.label, flags, target)


def _plan(ctx: AppContext, flags: TestFlags, ref: AgentRef) -> EvalPlan:
    data = ctx.path(flags.dataset) if flags.dataset else ref.dataset
    if data is None and not is_foreign(ref.module or ""):
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    if data is not None and not data.is_file():
        raise ValidationError(f"no such dataset: {data}", hint="-d data.jsonl")
    names = {entry.name for entry in fields(eval_flags.RunFlags)}
    shared = {entry.name: getattr(flags, entry.name) for entry in fields(flags) if entry.name in names}
    named = flags.model or (ref.config.experiment.model_path if ref.config else DEFAULT_MODEL)
    overrides = {"module": ref.module, "mcp": ref.mcp, "dataset": data, "model": named}
    settings = {**flags.settings, **({} if flags.timeout is None else {"agent_timeout": flags.timeout})}
    run_flags = eval_flags.RunFlags(**{**shared, **overrides, "settings": settings})
    plan = build_plan(run_flags, base_dir=ctx.cwd, runs_dir=runs_folder(ctx.cwd))
    if ref.config is not None:
        _as_configured(ctx, plan, ref.config, replace(run_flags, model=flags.model))
    return plan


def _as_configured(ctx: AppContext, plan: EvalPlan, config: EvalConfig, flags: eval_flags.RunFlags) -> None:
    plan.model = config_model(config, flags)
    if "agent_timeout" not in flags.settings:
        plan.timeouts = plan.timeouts.model_copy(update={"agent_s": config.evaluation.agent_workflow_timeout_s})
    missing = [name for name in config.secret_names() if not ctx.environ.get(name)]
    if missing:
        ctx.output.warn("MISSING_SECRETS", f"not set here: {', '.join(missing)} (required by the config)")
    apply_environment(ctx, config.env, [name for name in config.secret_names() if name not in missing], None)


def _batch(ctx: AppContext, prepared: PreparedRun, label: str, flags: TestFlags, target: Path | None) -> Result | int:
    facts, plan = prepared.facts, prepared.plan
    if facts.bad:
        bad = "; ".join(map(str, facts.bad[:3]))
        ctx.output.warn("BAD_ROWS", f"invalid rows skipped ({facts.bad_count}): {bad}")
    results: list[Rollout] = []
    shown_whole = not flags.brief and facts.selected <= SHOWN_WHOLE
    lines = RowLines(ctx.output, facts.selected, results, quiet=flags.quiet, whole=shown_whole)
    lines.expected = {row.index: row.ground_truth for row in prepared.rows()} if shown_whole else {}
    if not flags.quiet:
        data = Path(plan.dataset).name
        ctx.output.say(f"{label}: {count_noun(facts.selected, 'row')} of {data}, model {plan.model.name}")
    folder = lines.folder = ctx.path(DEBUG_FOLDER) if flags.debug else None
    trace_folder.set(folder)
    try:
        asyncio.run(replace(prepared, options=replace(prepared.options, watcher=lines)).report())
    finally:
        # Interrupted or not: what was run is written.
        if results and target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, json.dumps(results_of(results), ensure_ascii=False, indent=2) + "\n")
    data_of = results_of(results)
    code = 1 if (data_of["summary"]["failed"] + facts.selected - len(results)) else 0
    if flags.quiet and ctx.mode is not Mode.JSON:
        return code
    where = [f"results: {target}"] if target else []
    where += [f"traces: {folder}"] if folder else []
    document = {**data_of, "agent": label, "model": plan.model.name}
    return DetailResult(
        document, exit_code=code, human=lambda console: draw_summary(console, data_of["summary"], where, lines.stopped)
    )


def results_of(rollouts: list[Rollout]) -> JsonObject:
    ordered = sorted(rollouts, key=lambda rollout: rollout.place)
    passed = sum(rollout.first_failure is None for rollout in ordered)
    values: dict[str, list[float]] = {}
    for rollout in ordered:
        for name, score in rollout.scores.items():
            if score.value is not None:
                values.setdefault(name, []).append(score.value)
    return {
        "summary": {
            "total": len(ordered),
            "passed": passed,
            "failed": len(ordered) - passed,
            "total_duration_ms": round(sum(rollout.duration_ms for rollout in ordered), 3),
            "total_tokens": sum(rollout.usage.total_tokens for rollout in ordered),
            "mean_scores": {name: fmean(numbers) for name, numbers in values.items()},
        },
        "results": [_result_of(rollout) for rollout in ordered],
    }


def _result_of(rollout: Rollout) -> dict[str, object]:
    usage = rollout.usage
    return {
        "row_index": rollout.row_index,
        "success": (failure := rollout.first_failure) is None,
        "error": failure.message if failure else None,
        "duration_ms": rollout.duration_ms,
        "token_usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "num_llm_calls": len(rollout.calls),
        },
        "reward": rollout.value("reward"),
        "scores": {name: score.value for name, score in rollout.scores.items()},
        "finish_reason": rollout.finish_reason,
    }


@dataclass
class RowLines(Watcher):
    output: Output
    total: int
    results: list[Rollout]
    quiet: bool
    whole: bool = False
    expected: dict[int, str | None] = field(default_factory=dict)
    folder: Path | None = None
    stopped: str | None = None

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self.results.append(rollout)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(rollout.to_dict(), ensure_ascii=False, indent=2)
            (self.folder / f"row-{rollout.row_index}.json").write_text(text, encoding="utf-8")
        if self.quiet or self.output.mode is Mode.JSON:
            return
        failure = rollout.first_failure
        good = failure is None
        head = f"[{len(self.results)}/{self.total}] Row {rollout.row_index}: {'OK' if good else 'FAILED'}"
        if self.whole and self.output.mode is Mode.RICH:
            console = self.output.console(stderr=True)
            print_text(console, head, "bold green" if good else "bold red")
            draw_rollout(console, rollout, expected=self.expected.get(rollout.row_index))
            return
        values = {name: f"{score.value:g}" for name, score in rollout.scores.items() if score.value is not None}
        scored = "".join(f", {clean(name)} {values.get(name, 'failed')}" for name in rollout.scores)
        tokens = format_tokens(rollout.usage.total_tokens)
        line = f"{head} ({duration(rollout.duration_ms)}, {tokens} tokens{scored})"
        if failure is not None:
            line += f" - {' '.join(failure.message.split())[:160]}"
        if self.output.mode is Mode.PLAIN:
            self.output.stream({}, line)
        else:
            self.output.say(line, style="green" if good else "red")

    def say(self, text: str, *, keep: bool = False) -> None:
        if not self.quiet:
            self.output.say(text)

    def stage(self, text: str) -> None:
        if not self.quiet:
            self.output.say(text, style="yellow")

    def finished(self, report: Report) -> None:
        self.stopped = getattr(report, "stopped", None)


def draw_summary(console: Console, summary: JsonObject, where: list[str], stopped: str | None) -> None:
    line = f"{summary['passed']} of {summary['total']} rows ended well"
    print_text(console, line, "green" if (summary["failed"] == 0 and not stopped) else "red")
    for name, mean in summary["mean_scores"].items():
        print_text(console, f"  {clean(name)} {mean:.3g} on average")
    print_text(console, f"  time   {duration(summary['total_duration_ms'])}")
    print_text(console, f"  tokens {format_tokens(int(summary['total_tokens']))}")
    if stopped:
        print_text(console, f"  stopped: {stopped}", "red")
    for path in where:
        print_text(console, f"  {clean(path)}", "dim")
