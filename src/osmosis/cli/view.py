"""`osmosis view`: the runs of this machine in the browser. Finds them, serves them, opens the page."""

from __future__ import annotations

import getpass
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from osmosis.base.paths import cache_dir
from osmosis.errors import NotFound
from osmosis.local.request import run_folder, runs_folder
from osmosis.local.viewing.disk_library import DiskLibrary
from osmosis.local.viewing.view_server import ViewAccess, indexed, listen, render_static, serve
from osmosis.viewer.static_site import write_site

from .context import AppContext, current
from .flags import takes
from .output import Mode
from .results import DetailResult, OperationResult


@dataclass(frozen=True)
class ViewFlags:
    """What `osmosis view` is told."""

    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Runs by name, folders of runs, or workspaces [default: all runs of this workspace]"),
    ] = None
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 0
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the pages to this folder as files to share; serve nothing.")
    ] = None
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link and open no browser.")] = False


@takes(ViewFlags)
def view(flags: ViewFlags) -> OperationResult | int:
    """Look at local runs in the browser: figures, rollouts, conversations, comparisons; live while a run goes on.

    Listens on this machine alone, until Ctrl-C. Rollouts are never changed.

    Example:

        osmosis view
        osmosis view nightly-1 nightly-2
        osmosis view ~/experiments/.osmosis/runs --port 8000 --no-open
        osmosis view nightly-1 nightly-2 --export report
    """
    ctx = current()
    folders = _folders(ctx, flags.runs or [])
    library = DiskLibrary(folders, cache_dir(ctx.environ), _author(ctx))
    if flags.export is not None:
        return _export(ctx, library, ctx.path(flags.export))
    listener = listen(flags.port)
    access = ViewAccess(listener.getsockname()[1])
    only = library.only()
    link = access.link(f"runs/{only}" if only else "")

    def ready() -> None:
        if ctx.mode is Mode.JSON:
            ctx.output.show(DetailResult({"url": link, "folders": [str(folder) for folder in folders]}))
        else:
            ctx.output.say(f"{link}\nCtrl-C ends it; the link works once")
        if ctx.interactive and not flags.no_open:
            webbrowser.open(link)

    serve(library, access, listener, ready)
    return 0


def _export(ctx: AppContext, library: DiskLibrary, folder: Path) -> OperationResult:
    frozen = indexed(library, lambda name, share: ctx.output.say(f"indexing {name}: {share:.0f} %"))

    def written(count: int) -> None:
        if count % 500 == 0:
            ctx.output.say(f"{count:,} pages written")

    count = write_site(frozen, folder, render_static, written)
    resource = {"path": str(folder), "pages": count}
    return OperationResult("view.export", f"{count:,} pages written: open {folder / 'index.html'}", resource)


def _author(ctx: AppContext) -> str:
    """Whose labels they are: the login name of this machine."""
    try:
        return ctx.environ.get("OSMOSIS_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "somebody"


def _folders(ctx: AppContext, given: list[str]) -> list[Path]:
    if not given:
        return [runs_folder(ctx.cwd)]
    return [_folder(ctx, name) for name in given]


def _folder(ctx: AppContext, name: str) -> Path:
    """A run by its name, else a folder that holds runs."""
    try:
        return run_folder(name, ctx.cwd)
    except NotFound:
        if not DiskLibrary([ctx.path(name)], Path()).only(any_number=True):
            raise
        return ctx.path(name)
