"""`osmosis eval run CONFIG --on URL`: the same evaluation on a platform. Submitted as a snapshot, followed, fetched.

It is `eval submit --snapshot --wait` and `eval download` in one: this file only says what the flags of a local run mean
there, and refuses those that mean nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis.cli.context import AppContext
from osmosis.cli.download import DownloadOptions, download_run
from osmosis.cli.results import OperationResult
from osmosis.cli.runs import write_json
from osmosis.cli.submit import submit_config
from osmosis.cli.submit_case import SubmitOptions
from osmosis.cli.submit_overrides import Overrides
from osmosis.errors import UsageError

from .plan import further

if TYPE_CHECKING:
    from .run_config import RunFlags


def run_elsewhere(ctx: AppContext, flags: RunFlags, url: str) -> OperationResult:
    """Submit, follow to its end, fetch. Ctrl-C leaves the run going, and says how to follow and how to stop it."""
    _refuse(flags)
    there = replace(ctx, options=replace(ctx.options, platform=url))
    changed = Overrides(
        model=flags.model if flags.base_url is None else f"{flags.model or ''}@{flags.base_url}",
        n=flags.n,
        limit=flags.limit,
        name=flags.name,
        shards=flags.shards,
        max_cost=flags.max_cost,
        batch_size=flags.batch_size,
        params=further(flags.param),
        every_row=True,
    )
    options = SubmitOptions(
        "eval",
        flags.config,
        yes=flags.yes,
        wait=True,
        snapshot=True,
        secrets_file=str(flags.secrets_file) if flags.secrets_file else None,
        fail_under=flags.fail_under,
        overrides=changed,
    )
    result = submit_config(there, options)
    name = result.resource.get("name")
    if result.status == "cancelled" or not isinstance(name, str):
        return result
    fetched = download_run(there, name, DownloadOptions(None, "metrics,trajectories,logs", None, False, flags.yes))
    if flags.output is not None:
        write_json(ctx.path(flags.output), result.resource)
    there.output.say(fetched.message, style="dim")
    return replace(
        result,
        operation="eval.run",
        resource={**result.resource, "download": fetched.resource},
        exit_code=max(result.exit_code, fetched.exit_code),
    )


def _refuse(flags: RunFlags) -> None:
    """What only a run on this machine has."""
    if flags.base_url is not None and flags.model is None:
        raise UsageError("--base-url with --on needs --model, too", hint="--model NAME --base-url URL")
    for flag, given, hint in (
        ("--dataset-file", flags.dataset_file, "osmosis dataset upload FILE; the run reads the platform's dataset"),
        ("--rows", flags.rows, "--limit N runs the first rows"),
        ("--workers", flags.workers != "1" or None, "--shards N cuts the rows into jobs"),
        ("--retry-failed", flags.retry_failed or None, "osmosis eval retry NAME"),
        ("--upload", flags.upload or None, "leave it out: the run is there already"),
    ):
        if given is not None:
            raise UsageError(f"{flag} and --on cannot be used together", hint=hint)
