"""`osmosis test`: run an agent on rows, one attempt each, no score: the local run with nothing kept, shown whole.

Exit 0 when every row ended well, 1 when one failed. `--interactive` walks one row turn by turn instead.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import typer

from osmosis.base.files import write_text
from osmosis.base.json_types import JsonObject
from osmosis.cli.agent_ref import AgentRef, find_agent
from osmosis.cli.context import AppContext, current
from osmosis.cli.flags import takes
from osmosis.cli.local_eval.plan import (
    ApiKey,
    ApiKeyEnv,
    BaseUrl,
    Dataset,
    EvalFlags,
    Limit,
    MaxTokens,
    MaxTurns,
    Mcp,
    Module,
    Offset,
    Param,
    SkipBadRows,
    Temperature,
    TopP,
    build_plan,
)
from osmosis.cli.local_eval.terminal import let_through
from osmosis.cli.output import Mode
from osmosis.cli.results import DetailResult, Result
from osmosis.errors import UsageError, ValidationError
from osmosis.local.prepare import Prepared, prepare
from osmosis.local.request import Request
from osmosis.records.rollout import Rollout
from osmosis.sdk.agent_loop import trace_folder

from .show import RowLines, draw_summary
from .steps import step_through

DEFAULT_MODEL = "gpt-5-mini"
DEBUG_FOLDER = "test_debug"


@dataclass(frozen=True)
class TestFlags:
    """What `osmosis test` is told. A field named as one of `EvalFlags` means the same."""

    __test__ = False  # not a test case, whatever pytest makes of its name

    rollout: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A rollout of the workspace, or module:attribute.")
    ] = None
    module: Module = None
    mcp: Mcp = None
    dataset: Dataset = None
    model: Annotated[
        str | None, typer.Option("--model", help=f"Model [default: the rollout's, else {DEFAULT_MODEL}].")
    ] = None
    base_url: BaseUrl = None
    api_key: ApiKey = None
    api_key_env: ApiKeyEnv = None
    limit: Limit = None
    offset: Offset = 0
    skip_bad_rows: SkipBadRows = False
    batch_size: Annotated[
        str,
        typer.Option(
            "--concurrency", "--batch-size", help="Maximum number of concurrent rows, or auto.", metavar="N|auto"
        ),
    ] = "1"
    max_turns: MaxTurns = 10
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed for the model.")] = None
    param: Param = field(default_factory=list)
    agent_timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds per row [450].")] = None
    debug: Annotated[bool, typer.Option("--debug", help=f"Keep traces and conversations in ./{DEBUG_FOLDER}.")] = False
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the results as JSON.")] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print neither the rows nor the summary.")] = False
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Step through one row at a time.")] = False
    row: Annotated[int | None, typer.Option("--row", help="With --interactive: start with this row.")] = None


@takes(TestFlags)
def test(flags: TestFlags) -> Result | int:
    """Run an agent on rows, one attempt each, without scoring.

    Example:

        osmosis test multiply --limit 3
        osmosis test -m server:agent_loop -d test_data.jsonl --model openai/gpt-5-mini
        osmosis test -m server:agent_loop -d test_data.jsonl --model offline/calculator -i --row 2
    """
    ctx = current()
    ref = find_agent(ctx, flags.rollout, flags.module, flags.mcp)
    if flags.row is not None and not flags.interactive:
        raise UsageError("--row only works with --interactive", hint="use --offset and --limit, or add --interactive")
    target = ctx.path(flags.output) if flags.output else None
    if target is not None and target.is_dir():
        raise ValidationError(f"--output: {target} is a folder", hint="name a file in it")
    request = _request(ctx, flags, ref)
    if flags.interactive:
        # A person's thinking is not the agent's time.
        request.plan.timeouts = request.plan.timeouts.model_copy(update={"agent_s": None, "score_s": None})
    prepared = prepare(request)
    let_through(ctx, prepared)
    if flags.interactive:
        return step_through(ctx, prepared, ref.label, flags.row)
    return _batch(ctx, prepared, ref.label, flags, target)


def _request(ctx: AppContext, flags: TestFlags, ref: AgentRef) -> Request:
    """The local run that a test is: no scores, nothing kept."""
    data = ctx.path(flags.dataset) if flags.dataset else ref.dataset
    if data is None:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    if not data.is_file():
        raise ValidationError(f"no such dataset: {data}", hint="-d data.jsonl")
    known = {one.name for one in fields(EvalFlags)}
    shared = {one.name: getattr(flags, one.name) for one in fields(flags) if one.name in known}
    meant = {"module": ref.module, "mcp": ref.mcp, "dataset": data, "model": flags.model or ref.model or DEFAULT_MODEL}
    plan = build_plan(EvalFlags(**{**shared, **meant}), runs_dir=ctx.cwd)
    return Request(plan, ref.base_dir, None, ctx.environ, api_key=flags.api_key, needs_scores=False)


def _batch(ctx: AppContext, prepared: Prepared, label: str, flags: TestFlags, target: Path | None) -> Result | int:
    facts, plan = prepared.facts, prepared.plan
    if facts.bad:
        bad = "; ".join(map(str, facts.bad[:3]))
        ctx.output.warn("BAD_ROWS", f"invalid rows skipped ({facts.bad_count}): {bad}")
    results: list[Rollout] = []
    lines = RowLines(ctx.output, facts.selected, results, quiet=flags.quiet)
    if not flags.quiet:
        data = Path(plan.dataset).name
        ctx.output.say(f"{label}: {facts.selected} row(s) of {data}, model {plan.model.name}")
    folder = lines.folder = ctx.path(DEBUG_FOLDER) if flags.debug else None
    trace_folder.set(folder)
    try:
        asyncio.run(prepared.report(lines))
    finally:
        # Interrupted or not: what was run is written.
        if results and target is not None:
            write_results(target, results)
    data_of = results_of(results)
    failed = data_of["summary"]["failed"] + facts.selected - len(results)
    code = 1 if failed else 0
    if flags.quiet and ctx.mode is not Mode.JSON:
        return code
    where = [f"results: {target}"] if target else []
    where += [f"traces: {folder}"] if folder else []
    shown = {**data_of, "agent": label, "model": plan.model.name}
    return DetailResult(
        shown, exit_code=code, human=lambda console: draw_summary(console, data_of["summary"], where, lines.stopped)
    )


def results_of(rollouts: list[Rollout]) -> JsonObject:
    """The results document: a summary, then one entry per row in file order."""
    ordered = sorted(rollouts, key=lambda rollout: rollout.place)
    passed = sum(rollout.failure is None for rollout in ordered)
    return {
        "summary": {
            "total": len(ordered),
            "passed": passed,
            "failed": len(ordered) - passed,
            "total_duration_ms": round(sum(rollout.duration_ms for rollout in ordered), 3),
            "total_tokens": sum(rollout.usage.total_tokens for rollout in ordered),
        },
        "results": [_result_of(rollout) for rollout in ordered],
    }


def _result_of(rollout: Rollout) -> dict[str, object]:
    usage = rollout.usage
    return {
        "row_index": rollout.row_index,
        "success": rollout.failure is None,
        "error": rollout.failure.message if rollout.failure else None,
        "duration_ms": rollout.duration_ms,
        "token_usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "num_llm_calls": len(rollout.calls),
        },
        "reward": rollout.value("reward"),
        "finish_reason": rollout.finish_reason,
    }


def write_results(path: Path, rollouts: list[Rollout]) -> None:
    """Writes the document whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(results_of(rollouts), ensure_ascii=False, indent=2) + "\n")
