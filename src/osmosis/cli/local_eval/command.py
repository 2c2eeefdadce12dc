"""`osmosis eval -m module:agent -d data --eval-fn module:fn --model NAME`: the local evaluation by flags.

Declares the flags and hands them on: what they mean is `plan`, what happens is `session`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...errors import UsageError
from ..context import current
from ..output import DetailResult


def local_eval(
    classes: Annotated[
        list[str] | None, typer.Argument(metavar="[CLASS]...", help="Failure classes for --retry-failed.", hidden=True)
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", "--agent", help="The agent: module:attribute.")
    ] = None,
    mcp: Annotated[str | None, typer.Option(help="MCP tools instead of an agent: a folder or a URL.")] = None,
    server: Annotated[str | None, typer.Option(help="A rollout server instead of an agent: its URL.")] = None,
    server_key_env: Annotated[str | None, typer.Option(help="Variable that holds the rollout server's key.")] = None,
    grader: Annotated[str | None, typer.Option(help="Grader of a workflow: module:Class.")] = None,
    dataset: Annotated[str, typer.Option("-d", "--dataset", help="Rows: .jsonl, .json, .csv or .parquet.")] = "",
    eval_fn: Annotated[
        list[str] | None, typer.Option("--eval-fn", help="Score function: module:function. Repeat.")
    ] = None,
    rubric: Annotated[list[str] | None, typer.Option(help="Rubric as a score: file.yaml#id. Repeat.")] = None,
    model: Annotated[str | None, typer.Option(help="Model: its name at --base-url, provider/name, offline/...")] = None,
    base_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint, up to /v1.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The key itself (visible to ps: prefer --api-key-env).")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the key.")] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="Another model beside it: NAME or NAME@URL. Repeat.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Attempts per row, for pass@k.")] = 1,
    k: Annotated[list[int] | None, typer.Option("--k", help="Further k for pass@k. Repeat.")] = None,
    pass_threshold: Annotated[float, typer.Option(help="Score at or above which a rollout passes.")] = 1.0,
    batch_size: Annotated[
        str, typer.Option("--batch-size", "--concurrency", help="Rollouts at once, or auto.", metavar="N|auto")
    ] = "1",
    limit: Annotated[int | None, typer.Option(help="First N rows.")] = None,
    offset: Annotated[int, typer.Option(help="Rows to leave out first.")] = 0,
    rows: Annotated[str | None, typer.Option(help="Rows by index: 3,7,10-20.")] = None,
    sample: Annotated[str | None, typer.Option(help="A random share: 10%.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of --sample and of the model (moved on per attempt).")] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out.")] = False,
    require_ground_truth: Annotated[bool, typer.Option("--require-ground-truth", help="Refuse rows without.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens per answer.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="Any other parameter: key=value (JSON). Repeat.")] = None,
    max_turns: Annotated[int, typer.Option(help="Turns an agent may take.")] = 10,
    agent_timeout: Annotated[float | None, typer.Option(help="Seconds per rollout [450].")] = None,
    score_timeout: Annotated[float | None, typer.Option(help="Seconds per score [150].")] = None,
    model_timeout: Annotated[float | None, typer.Option(help="Seconds per model call [300].")] = None,
    tool_timeout: Annotated[float | None, typer.Option(help="Seconds per tool call.")] = None,
    run_timeout: Annotated[float | None, typer.Option(help="Seconds for the whole run.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Repeats of a failing call [5].")] = None,
    breaker_after: Annotated[int | None, typer.Option(help="Equal failures in a row that end the run [20].")] = None,
    max_cost: Annotated[float | None, typer.Option(help="USD after which the run pauses.")] = None,
    max_tokens_total: Annotated[int | None, typer.Option(help="Tokens after which the run pauses.")] = None,
    price: Annotated[str | None, typer.Option(help="USD per million prompt,completion tokens.")] = None,
    pilot: Annotated[int | None, typer.Option(help="Run N rollouts, forecast the rest, ask.")] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Keep answers, by request and attempt.")] = False,
    replay: Annotated[str | None, typer.Option(help="Answer from a run's journal: its name.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing one goes on.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed rollouts again [CLASS...].")] = False,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write the results document.")] = None,
    fail_under: Annotated[float | None, typer.Option(help="Exit 1 when the first score's mean is below.")] = None,
    secret: Annotated[list[str] | None, typer.Option(help="Variable whose value is never written. Repeat.")] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Agree beforehand.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No report on stdout.")] = False,
) -> DetailResult | int:
    """Evaluate an agent on this machine: every row, every attempt, scored, journaled, resumable.

    Example:

        osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward \\
            --model my-model --base-url http://localhost:8000/v1 --n 5 --batch-size 16 -o results.json
    """
    given: dict[str, Any] = dict(locals())
    from .checks import check_classes, check_limits
    from .plan import LocalFlags, build_plan, parse_model, sampling
    from .session import LocalRun, run_local, runs_dir

    ctx = current()
    if classes and not retry_failed:
        raise UsageError(f"unexpected argument: {classes[0]}", hint="osmosis eval --help")
    check_classes(classes or [])
    known = {name: given[name] for name in LocalFlags.__annotations__ if given[name] is not None}
    flags = LocalFlags(**known)
    plan = build_plan(flags, runs_dir=runs_dir(ctx))
    check_limits(fail_under=fail_under)
    if pilot is not None and pilot < 1:
        raise UsageError("--pilot must be at least 1")
    run = LocalRun(
        plan,
        ctx.cwd,
        runs_dir(ctx),
        grader=grader,
        api_key=api_key,
        server_key_env=server_key_env,
        secrets=secret or [],
        output=ctx.path(output) if output else None,
        fail_under=fail_under,
        yes=yes,
        quiet=quiet,
        retry_failed=(classes or []) if retry_failed else None,
        baselines=[parse_model(text, params=sampling(flags)) for text in baseline or []],
        pilot=pilot,
    )
    return run_local(ctx, run)
