"""`osmosis test`: run an agent on rows, one attempt each, no score. The engine's loop with an observer that prints.

Exit 0 when every row ended well, 1 when one failed. `--interactive` walks one row turn by turn instead.
"""

# ruff: noqa: PT028 - the command is called `test`; these are its options, not fixtures

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...base.files import write_text
from ...errors import UsageError, ValidationError
from ..agent_ref import AgentRef, find_agent, opened
from ..context import AppContext, current
from ..output import DetailResult, Result

if TYPE_CHECKING:
    from ...engine.agent import Agent
    from ...engine.task import RolloutFn
    from ...llm import Model
    from ...records.plan import EvalPlan
    from ...records.rollout import Rollout

DEFAULT_MODEL = "gpt-5-mini"
DEBUG_FOLDER = "test_debug"


@dataclass
class TestFlags:
    """What the command line says."""

    __test__ = False  # not a test case, whatever pytest makes of its name

    ref: AgentRef
    dataset: Path
    plan: EvalPlan
    api_key: str | None = None
    debug: bool = False
    output: Path | None = None
    quiet: bool = False
    row: int | None = None
    results: list[Rollout] = field(default_factory=list)


def test(
    name: Annotated[str | None, typer.Argument(help="A rollout of the workspace, or module:attribute.")] = None,
    module: Annotated[
        str | None, typer.Option("--module", "-m", "--agent", help="The agent: module:attribute.")
    ] = None,
    mcp: Annotated[str | None, typer.Option("--mcp", help="MCP tools instead of an agent: a folder or a URL.")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", "-d", help="Rows: .jsonl, .json, .csv or .parquet.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help=f"Model [{DEFAULT_MODEL}, or the rollout's]; offline/calculator.")
    ] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="OpenAI-compatible endpoint, up to /v1.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The key itself (prefer --api-key-env).")] = None,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds the key.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="First N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", help="Rows to leave out first.")] = 0,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out.")] = False,
    concurrency: Annotated[
        str, typer.Option("--concurrency", "--batch-size", help="Rows at once, or auto.", metavar="N|auto")
    ] = "1",
    max_turns: Annotated[int, typer.Option("--max-turns", help="Turns an agent may take.")] = 10,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Tokens per answer.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Nucleus sampling.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the model.")] = None,
    param: Annotated[list[str] | None, typer.Option("--param", help="Any other parameter: key=value. Repeat.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds per row [450].")] = None,
    debug: Annotated[bool, typer.Option("--debug", help=f"Keep traces and conversations in ./{DEBUG_FOLDER}.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write the results as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No lines per row, no summary.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Step through a row.")] = False,
    row: Annotated[int | None, typer.Option("--row", help="With --interactive: start with this row.")] = None,
) -> Result | int:
    """Run an agent on rows, one attempt each, no score.

    Example:

        osmosis test multiply --limit 3
        osmosis test -m server:agent_loop -d test_data.jsonl --model openai/gpt-5-mini
        osmosis test -m server:agent_loop -d test_data.jsonl --model offline/calculator -i --row 2
    """
    from ..local_eval.plan import LocalFlags, build_plan

    ctx = current()
    ref = find_agent(ctx, name, module, mcp)
    if row is not None and not interactive:
        raise UsageError("--row is for --interactive", hint="use --offset and --limit, or add --interactive")
    data = ctx.path(dataset) if dataset else ref.dataset
    if data is None:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    if not data.is_file():
        raise ValidationError(f"there is no dataset {data}", hint="-d data.jsonl")
    flags = LocalFlags(
        module=ref.module or ref.label,
        dataset=str(data),
        model=model or ref.model or DEFAULT_MODEL,
        base_url=base_url,
        api_key_env=api_key_env,
        limit=limit,
        offset=offset,
        skip_bad_rows=skip_bad_rows,
        batch_size=concurrency,
        max_turns=max_turns,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        param=param or [],
        agent_timeout=timeout,
    )
    plan = build_plan(flags, runs_dir=ctx.cwd)
    target = ctx.path(output) if output else None
    if target is not None and target.is_dir():
        raise ValidationError(f"--output: {target} is a folder", hint="name a file in it")
    run = TestFlags(ref, data, plan, api_key, debug, target, quiet, row)
    agent = _load(run)
    if interactive:
        from .steps import step_through

        return step_through(ctx, run, agent)
    return _batch(ctx, run, agent)


def _load(run: TestFlags) -> Agent | None:
    if run.ref.module is None:
        return None
    from ...engine.agent import load_agent

    return load_agent(run.ref.module, run.ref.base_dir)


@asynccontextmanager
async def rollouts(ctx: AppContext, run: TestFlags, agent: Agent | None, model: Model) -> AsyncIterator[RolloutFn]:
    """The `RolloutFn` of this agent against `model`."""
    from ...engine.rollout import in_process

    async with opened(run.ref, agent, ctx.environ) as ready:
        if agent is None or agent.backend is None:
            async with in_process(ready, model, run.plan) as rollout_fn:
                yield rollout_fn
            return
        # Workflows may bring a vendor's client, which wants a URL.
        from ...serve.drive.traingate import TrainGate

        gate = TrainGate(model)
        await gate.start()
        try:
            async with in_process(ready, model, run.plan, endpoints=gate) as rollout_fn:
                yield rollout_fn
        finally:
            await gate.stop()


def open_test_model(ctx: AppContext, run: TestFlags) -> Model:
    """The model of the flags; its key from where the eval looks for it."""
    from ...llm import open_model
    from ...sdk.judge_model import DEFAULT_API_KEY_ENV
    from ..local_eval.plan import key_for

    spec = run.plan.model
    if ctx.options.offline and spec.base_url:
        from ..environment import allow_host

        allow_host(spec.base_url)
    key = key_for(spec, ctx.environ, run.api_key)
    provider = spec.name.partition("/")[0]
    if key is None and spec.kind == "litellm" and provider in DEFAULT_API_KEY_ENV:
        # Said here, at once: the vendor library would try and fail for half a minute first.
        variable = DEFAULT_API_KEY_ENV[provider]
        raise ValidationError(
            f"{variable} is not set, and model {spec.name} needs it",
            hint=f"export {variable}=..., or try the stand-in: --model offline/calculator",
        )
    return open_model(spec, api_key=key, retry=run.plan.retry, timeout_s=run.plan.timeouts.model_s)


def _batch(ctx: AppContext, run: TestFlags, agent: Agent | None) -> Result | int:
    from ...datasets.scan import scan_dataset
    from .show import RowLines, draw_summary

    facts = scan_dataset(run.dataset, run.plan.selection)
    if not run.plan.skip_bad_rows:
        facts.refuse_bad(run.dataset)
    elif facts.bad:
        ctx.output.warn("BAD_ROWS", f"{facts.bad_count} bad rows are left out: {'; '.join(map(str, facts.bad[:3]))}")
    if not facts.selected:
        raise ValidationError(f"{run.dataset} has no row to run", hint="check --offset and --limit")
    lines = RowLines(ctx.output, facts.selected, run.results, quiet=run.quiet)
    if not run.quiet:
        ctx.output.say(f"{run.ref.label}: {facts.selected} row(s) of {run.dataset.name}, model {run.plan.model.name}")
    folder = ctx.path(DEBUG_FOLDER) if run.debug else None
    try:
        asyncio.run(_go(ctx, run, agent, lines, facts.selected, folder))
    finally:
        # Interrupted or not: what was run is written.
        if run.results and run.output is not None:
            write_results(run.output, run.results)
    data = results_of(run.results)
    failed = data["summary"]["failed"] + facts.selected - len(run.results)
    code = 1 if failed else 0
    if run.quiet and ctx.mode.value != "json":
        return code
    where = [f"results: {run.output}"] if run.output else []
    where += [f"traces: {folder}"] if folder else []
    shown = {**data, "agent": run.ref.label, "model": run.plan.model.name}
    return DetailResult(
        shown, exit_code=code, human=lambda console: draw_summary(console, data["summary"], where, lines.stopped)
    )


async def _go(
    ctx: AppContext, run: TestFlags, agent: Agent | None, lines: Any, selected: int, folder: Path | None
) -> None:
    from ...datasets.scan import read_rows
    from ...engine.evaluate import Options, evaluate
    from ...llm import probe
    from ...sdk.agent_loop import trace_folder

    model = open_test_model(ctx, run)
    trace_folder.set(folder)
    lines.folder = folder
    try:
        await probe(model)
        async with rollouts(ctx, run, agent, model) as rollout_fn:
            rows = read_rows(run.dataset, run.plan.selection, skip_bad=run.plan.skip_bad_rows)
            await evaluate(run.plan, rows, rollout_fn, observer=lines, options=Options(rows=selected))
    finally:
        await model.close()


def results_of(rollouts: list[Rollout]) -> dict[str, Any]:
    """The results document: a summary, then one entry per row in file order."""
    ordered = sorted(rollouts, key=lambda rollout: rollout.key)
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


def _result_of(rollout: Rollout) -> dict[str, Any]:
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
