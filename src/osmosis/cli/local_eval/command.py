"""`osmosis eval -m module:agent -d data --eval-fn module:fn --model NAME`: the local evaluation by flags.

The flags are `EvalFlags`; what happens is `osmosis.local`.
"""

from __future__ import annotations

from osmosis.cli.context import current
from osmosis.cli.flags import takes
from osmosis.cli.resolve import Command
from osmosis.cli.results import DetailResult
from osmosis.errors import UsageError
from osmosis.local.request import Request, check_classes, runs_folder
from osmosis.local.workers import worker_count
from osmosis.sdk.agent_loop import trace_folder

from .eval_flags import DEBUG_FOLDER, EvalFlags
from .plan import baseline_specs, build_plan, check_limits
from .terminal import Ending, run_local

_REFUSED_THERE = Command("osmosis.cli.local_eval.command_there", "refused_there", "what to type in the place of --on")
"""Loaded when it is needed: it reads the configs of a workspace, which no other local run does."""


@takes(EvalFlags)
def local_eval(flags: EvalFlags) -> DetailResult | int:
    """Evaluate an agent on this machine. Every rollout is scored and saved, so an interrupted run can be resumed.

    Example:

        osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward \\
            --model my-model --base-url http://localhost:8000/v1 --n 5 --batch-size 16 -o results.json
    """
    ctx = current()
    if flags.on is not None:
        raise _REFUSED_THERE.target()(ctx, flags, flags.on)
    if flags.classes and not flags.retry_failed:
        raise UsageError(f"unexpected argument: {flags.classes[0]}", hint="osmosis eval --help")
    check_classes(flags.classes)
    runs = runs_folder(ctx.cwd)
    plan = build_plan(flags, runs_dir=runs)
    check_limits(fail_under=flags.fail_under)
    if flags.pilot is not None and flags.pilot < 1:
        raise UsageError("--pilot must be at least 1")
    request = Request(
        plan,
        ctx.cwd,
        runs,
        ctx.environ,
        grader=flags.grader,
        api_key=flags.api_key,
        server_key_env=flags.server_key_env,
        secrets=flags.secret,
        retry_failed=flags.classes if flags.retry_failed else None,
        baselines=baseline_specs(flags),
        pilot=flags.pilot,
        workers=worker_count(flags.workers),
    )
    output = ctx.path(flags.output) if flags.output else None
    trace_folder.set(ctx.path(DEBUG_FOLDER) if flags.debug else None)
    return run_local(ctx, request, Ending(output, flags.fail_under, flags.yes, flags.quiet))
