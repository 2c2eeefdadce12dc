"""`osmosis eval share` and `osmosis eval schedules`: links to runs of the platform, and evaluations that it repeats."""

from typing import Annotated

from typer import Option

from osmosis.cli.core import prompts
from osmosis.cli.core.context import current
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.eval.runs import EvalName
from osmosis.cli.token import parse_lifetime
from osmosis.records.api.runs import MAX_SHARE_DAYS


def share(
    name: EvalName,
    expires: Annotated[str, Option(help=f"Lifetime, such as 12h or 7d; at most {MAX_SHARE_DAYS}d")] = "7d",
    show_links: Annotated[bool, Option("--list", help="List its links, never their addresses")] = False,
    revoke: Annotated[str | None, Option(metavar="ID", help="Revoke a link, which stops working at once")] = None,
) -> ListResult | OperationResult:
    """Create a link with which anybody reads the report and the rollouts of a run, without an account.

    It shows neither configuration, log and files of the run nor anything else, and is printed this once. Only its
    hash is stored; people who may submit runs may create and revoke links, and the audit log says who did.

    Example:
        osmosis eval share multiply-1
        osmosis eval share multiply-1 --expires 30d
        osmosis eval share latest --json
        osmosis eval share multiply-1 --list
        osmosis eval share multiply-1 --revoke 2f1c0a
    """
    ctx, lifetime_s = current(), parse_lifetime(expires, MAX_SHARE_DAYS)
    with ctx.client() as client:
        run = client.evals.get(name).run.name
        if show_links or revoke is not None:
            links = client.evals.share_links(run)
        if show_links:
            columns = [Column("id", "Id"), Column("creator_name", "By"), Column("expires_at", "Expires", show=when)]
            return ListResult([link.to_dict() for link in links], columns, empty=f"no links: osmosis eval share {run}")
        if revoke is not None:
            matches = [link.id for link in links if link.id.startswith(revoke)]
            link_id = matches[0] if len(matches) == 1 else revoke
            prompts.agree(ctx, f"Revoke link {link_id} to {run}?", "eval.share", id=link_id)
            client.evals.unshare(run, link_id)
            return OperationResult("eval.share", f"the link to {run} is revoked", {"id": link_id})
        link = client.evals.share(run, lifetime_s)
    message = f"whoever has this link can read {run} until {when(link.expires_at)}; it is shown this once:\n{link.url}"
    steps = [NextStep("take it back", command=f"osmosis eval share {run} --revoke {link.id}")]
    return OperationResult("eval.share", message, link.to_dict(), next_steps=steps)


def schedules(
    stop: Annotated[str | None, Option(metavar="NAME", help="Stop a schedule; its runs stay")] = None,
) -> ListResult | OperationResult:
    """List the evaluations that the platform repeats, or stop one.

    Submitting a config with `[schedule] every = "1d"` begins one. Each run is of the newest synced commit and has the
    secrets of the workspace only.

    Example:
        osmosis eval schedules
        osmosis eval schedules --stop nightly
    """
    ctx = current()
    with ctx.client() as client:
        if stop is not None:
            prompts.agree(ctx, f"Stop schedule {stop}?", "eval.schedules", name=stop)
            client.evals.stop_schedule(stop)
            return OperationResult("eval.schedules", f"schedule {stop} is stopped; its runs stay", {"name": stop})
        rows = client.evals.schedules()
    columns = [*build_columns("name=Name", "every=Every"), Column("next_at", "Next run", show=when)]
    columns += build_columns("last_run_name=Last run", "last_run_status=Status", "creator_name=By", "error=Problem")
    empty = 'no schedules: write [schedule] with every = "1d" in a config, then: osmosis eval submit CONFIG'
    return ListResult([row.to_dict() for row in rows], columns, empty=empty)
