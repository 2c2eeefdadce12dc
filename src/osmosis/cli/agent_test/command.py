"""`osmosis test`: run an agent on rows, one attempt each: the local run with nothing kept, graded and shown whole.

Exit 0 when every row ended well, 1 when one failed. `--interactive` walks one row turn by turn instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from osmosis.base.files import write_text
from osmosis.base.json_types import JsonObject
from osmosis.cli.agent_ref import AgentRef, find_agent
from osmosis.cli.context import AppContext, current
from osmosis.cli.flags import takes
from osmosis.cli.local_eval.eval_flags import (
    ApiKey,
    ApiKeyEnv,
    BaseUrl,
    Dataset,
    EvalFlags,
    EvalFn,
    Limit,
    MaxTokens,
    MaxTurns,
    Mcp,
    Module,
    Offset,
    Param,
    Rubric,
    SkipBadRows,
    Temperature,
    TopP,
)
from osmosis.cli.local_eval.plan import build_plan
from osmosis.cli.local_eval.run_config import surround
from osmosis.cli.local_eval.terminal import let_through
from osmosis.cli.output import Mode
from osmosis.cli.results import DetailResult, Result
from osmosis.errors import UsageError, ValidationError
from osmosis.local.prepare import prepare
from osmosis.local.prepared import Prepared
from osmosis.local.request import Request
from osmosis.records.config import EvalConfig
from osmosis.records.plan import EvalPlan, ModelSpec
from osmosis.records.rollout import Rollout
from osmosis.sdk.agent_loop import trace_folder

from .show import RowLines, draw_summary
from .steps import step_through

DEFAULT_MODEL = "gpt-5-mini"
SHOWN_WHOLE = 5
"""Rows of which the conversation is shown; of more, a line each."""
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
    eval_fn: EvalFn = field(default_factory=list)
    rubric: Rubric = field(default_factory=list)
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
    brief: Annotated[bool, typer.Option("--brief", "-b", help="One line per row, without the conversation.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print neither the rows nor the summary.")] = False
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Step through one row at a time.")] = False
    row: Annotated[int | None, typer.Option("--row", help="With --interactive: start with this row.")] = None


@takes(TestFlags)
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
    named = flags.model or (ref.config.experiment.model_path if ref.config else DEFAULT_MODEL)
    meant = {"module": ref.module, "mcp": ref.mcp, "dataset": data, "model": named}
    plan = build_plan(EvalFlags(**{**shared, **meant}), runs_dir=ctx.cwd)
    if ref.config is not None:
        _as_configured(ctx, plan, ref.config, flags)
    return Request(plan, ref.base_dir, None, ctx.environ, api_key=flags.api_key, needs_scores=False)


def _as_configured(ctx: AppContext, plan: EvalPlan, config: EvalConfig, flags: TestFlags) -> None:
    """What the config says and no flag: the model's endpoint, key and parameters, the variables, the time limits."""
    spec, given = ModelSpec.from_config(config), plan.model
    if flags.model is None and flags.base_url is None:
        plan.model = spec.model_copy(update={"params": {**spec.params, **given.params}})
    else:
        plan.model = given.model_copy(update={"params": {**spec.params, **given.params}})
    if flags.agent_timeout is None:
        plan.timeouts = plan.timeouts.model_copy(update={"agent_s": config.evaluation.agent_workflow_timeout_s})
    missing = [name for name in config.secret_names() if not ctx.environ.get(name)]
    if missing:
        ctx.output.warn("MISSING_SECRETS", f"not set here: {', '.join(missing)} (required by the config)")
    surround(ctx, config.env, [name for name in config.secret_names() if name not in missing], None)


def _batch(ctx: AppContext, prepared: Prepared, label: str, flags: TestFlags, target: Path | None) -> Result | int:
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
            "mean_scores": _means(ordered),
        },
        "results": [_result_of(rollout) for rollout in ordered],
    }


def _means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Of each score over the rows that have it."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, score in rollout.scores.items():
            if score.value is not None:
                found.setdefault(name, []).append(score.value)
    return {name: fmean(values) for name, values in found.items()}


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
        "scores": {name: score.value for name, score in rollout.scores.items()},
        "finish_reason": rollout.finish_reason,
    }


def write_results(path: Path, rollouts: list[Rollout]) -> None:
    """Writes the document whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(results_of(rollouts), ensure_ascii=False, indent=2) + "\n")
