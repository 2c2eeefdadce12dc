"""`osmosis eval resume` and `osmosis eval regrade`: go on with a local run, or score it again without asking the model.

Both read the plan from the run's own `run.json`; flags here change only what does not change a result, or say so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError, ValidationError
from ..context import AppContext, current
from ..output import DetailResult


def resume(
    name: Annotated[str, typer.Argument(help="Name of the run, or its folder.")],
    classes: Annotated[
        list[str] | None, typer.Argument(metavar="[CLASS]...", help="With --retry-failed: categories or phases.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed rollouts again [CLASS...].")] = False,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", "--concurrency", help="Rollouts at once, or auto.", metavar="N|auto")
    ] = None,
    max_cost: Annotated[float | None, typer.Option(help="New limit in USD, spending so far included.")] = None,
    max_tokens_total: Annotated[int | None, typer.Option(help="New limit in tokens, those so far included.")] = None,
    run_timeout: Annotated[float | None, typer.Option(help="Seconds for this session.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The key, when it is in no variable.")] = None,
    secrets_file: Annotated[
        str | None, typer.Option("--secrets-file", help="NAME=value lines, for a config's run; - is stdin.")
    ] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write the results document.")] = None,
    fail_under: Annotated[float | None, typer.Option(help="Exit 1 when the first score's mean is below.")] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Agree to rerun or regrade changed inputs.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No report on stdout.")] = False,
) -> DetailResult | int:
    """Go on with a local run: what is on disk is kept, the rest is run.

    Example:

        osmosis eval resume nightly
        osmosis eval resume nightly --retry-failed timeout rate_limit
    """
    from .checks import check_classes, check_limits
    from .plan import parse_concurrency
    from .session import run_local

    ctx = current()
    if classes and not retry_failed:
        raise UsageError(f"unexpected argument: {classes[0]}", hint="failure classes go with --retry-failed")
    check_limits(max_cost=max_cost, max_tokens_total=max_tokens_total, run_timeout=run_timeout, fail_under=fail_under)
    check_classes(classes or [])
    run = stored_run(ctx, name, secrets_file)
    plan = run.plan
    if batch_size is not None:
        plan.concurrency, plan.adaptive = parse_concurrency(batch_size)
    if max_cost is not None:
        plan.budget.max_cost_usd = max_cost
    if max_tokens_total is not None:
        plan.budget.max_total_tokens = max_tokens_total
    plan.timeouts.run_s = run_timeout
    run.api_key = api_key
    run.output = ctx.path(output) if output else None
    run.fail_under, run.yes, run.quiet = fail_under, yes, quiet
    run.retry_failed = (classes or []) if retry_failed else None
    return run_local(ctx, run)


def regrade(
    name: Annotated[str, typer.Argument(help="Name of the run, or its folder.")],
    eval_fn: Annotated[list[str] | None, typer.Option("--eval-fn", help="Score with these instead. Repeat.")] = None,
    rubric: Annotated[
        list[str] | None, typer.Option(help="Score with this rubric instead: file.yaml#id. Repeat.")
    ] = None,
    pass_threshold: Annotated[float | None, typer.Option(help="Another threshold.")] = None,
    failed_only: Annotated[bool, typer.Option("--failed-only", help="Only rollouts with a failed score.")] = False,
    secrets_file: Annotated[
        str | None, typer.Option("--secrets-file", help="NAME=value lines, for a config's run; - is stdin.")
    ] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write the results document.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No report on stdout.")] = False,
) -> DetailResult | int:
    """Score a run's stored conversations again, without asking the model. All new scores replace the old at once.

    Example:

        osmosis eval regrade nightly
        osmosis eval regrade nightly --eval-fn rewards:stricter --pass-threshold 0.5
    """
    from .checks import check_limits
    from .signals import print_aside

    ctx = current()
    check_limits(pass_threshold=pass_threshold)
    run = stored_run(ctx, name, secrets_file)
    if eval_fn or rubric:
        run.plan.score_fns = [*(eval_fn or []), *(f"rubric:{r}" for r in rubric or [])]
    if pass_threshold is not None:
        run.plan.pass_threshold = pass_threshold
    run.output = ctx.path(output) if output else None
    run.quiet = quiet
    with print_aside():
        return _regrade(ctx, run, failed_only=failed_only)


def stored_run(ctx: AppContext, name: str, secrets_file: str | None = None) -> Any:
    """The `LocalRun` that the run's `run.json` describes, in the surroundings that its config gave it."""
    from .session import LocalRun, open_run

    journal = open_run(ctx, name)
    local = journal.run().get("local")
    if not isinstance(local, dict):
        raise ValidationError(f"run {name} was not made by this command", hint="it can be reported on and compared")
    plan = journal.plan()
    plan.name = journal.folder.name
    base = Path(local["base_dir"])
    if not base.is_dir():
        raise ValidationError(f"the folder of run {name} is gone: {base}", hint="move it back, or run anew")
    rollout, env = local.get("rollout"), local.get("env") or {}
    if rollout is not None:
        from ..own_environment import continue_inside
        from .run import surround

        continue_inside(ctx, base, rollout)
        surround(ctx, env, local.get("secrets") or [], secrets_file)
    elif secrets_file is not None:
        raise UsageError("--secrets-file goes with the run of a config", hint="export the variables")
    return LocalRun(
        plan,
        base,
        journal.folder.parent,
        rollout=rollout,
        env=env,
        grader=local.get("grader"),
        server_key_env=local.get("server_key_env"),
        secrets=local.get("secrets") or [],
        must_exist=True,
    )


def _regrade(ctx: AppContext, run: Any, *, failed_only: bool) -> DetailResult | int:
    from ...base.redact import Redactor
    from ...datasets.scan import read_rows, scan_dataset
    from ...engine.evaluate import Options, evaluate
    from ...engine.identity import score_hash
    from ...engine.journal import Journal, KeySet
    from ...engine.results import check_output, write_results
    from ...engine.resume import regrade as regrade_keys
    from ...engine.scoring import close_scorers, load_scorers
    from .plan import declared_secrets
    from .session import without_secrets
    from .show import draw_report, exit_code, next_steps

    plan = run.plan
    if run.output is not None:
        check_output(run.output)
    if not plan.score_fns:
        raise UsageError("this run has only its grader's rewards", hint="give --eval-fn module:function")
    scorers = load_scorers(plan.score_fns, run.base_dir, timeout_s=plan.timeouts.score_s, environ=ctx.environ)
    row_hashes: dict[int, str] = {}
    facts = scan_dataset(run.dataset, plan.selection, row_hashes=row_hashes)
    if not plan.skip_bad_rows:
        facts.refuse_bad(run.dataset)
    journal = Journal(run.folder, redactor=Redactor(declared_secrets(run.secrets, ctx.environ)))
    stored: dict[str, str] = {}
    keys = KeySet()
    changed: dict[int, list[list[dict[str, Any]]]] = {}
    for line in journal.lines():
        key = (line["row_index"], line["attempt"])
        failed = any(s.get("failure") for s in (line.get("scores") or {}).values())
        if line["status"] == "success" and (failed or not failed_only):
            keys.add(key)
            if line.get("hashes", {}).get("row", row_hashes.get(key[0])) != row_hashes.get(key[0]):
                changed.setdefault(key[0], []).append(line["messages"])
            stored = line.get("hashes") or stored
    hashes = {**{k: v for k, v in stored.items() if k != "row"}, "score": score_hash(plan.score_fns, run.base_dir)}

    def rows() -> Any:
        return read_rows(run.dataset, plan.selection, skip_bad=plan.skip_bad_rows)

    _check_changed(run, changed, rows())

    async def go() -> Any:
        try:
            if len(keys):
                await regrade_keys(journal, plan, rows(), scorers, keys, hashes)
            journal.open(plan)
            options = Options(rows=facts.selected, dataset_rows=facts.rows)
            return await evaluate(plan, rows(), None, scorers=scorers, journal=journal, options=options)
        finally:
            journal.close()
            await close_scorers(scorers)

    report = asyncio.run(go())
    if run.output is not None:
        write_results(run.output, journal, plan, report)
    code = exit_code(report)
    report = without_secrets(report, journal.redactor)
    count = sum(map(len, changed.values()))
    note = f"{len(keys)} rollouts scored again" + (f", {count} of them on rows that were edited since" if count else "")
    if run.quiet:
        return code
    from ...engine.results import summary_part

    data = {
        "name": plan.name,
        "journal": str(run.folder),
        "regraded": len(keys),
        "edited": count,
        "summary": summary_part(report),
    }
    return DetailResult(
        journal.redactor.data(data),
        exit_code=code,
        next_steps=next_steps(plan, report),
        human=lambda console: draw_report(console, plan, report, notes=[note]),
    )


def _check_changed(run: Any, changed: dict[int, list[list[dict[str, Any]]]], rows: Any) -> None:
    """A conversation can be scored against an edited row while it still begins as that row does; else it is refused."""
    from ...errors import Conflict

    left = dict(changed)
    for row in rows if changed else ():
        opening = row.messages()
        if all(talk[: len(opening)] == opening for talk in changed.get(row.index, ())):
            left.pop(row.index, None)
    if left:
        shown = ", ".join(map(str, sorted(left)[:5])) + (" ..." if len(left) > 5 else "")
        raise Conflict(
            f"{sum(map(len, left.values()))} rollouts of run {run.plan.name} are of rows with another prompt now, or "
            f"none: rows {shown}",
            hint=f"osmosis eval resume {run.plan.name} runs them again; or put the dataset back",
            rows=sorted(left),
        )
