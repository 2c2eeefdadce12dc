"""`osmosis view`: the runs of this machine in the browser. Finds them, serves them, opens the page."""

from __future__ import annotations

import getpass
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from osmosis.base.paths import cache_dir
from osmosis.errors import NotFound
from osmosis.local.request import run_folder, runs_folder
from osmosis.local.viewing.disk_library import DiskLibrary
from osmosis.local.viewing.fetched_run import PlatformEvaluation
from osmosis.local.viewing.mixed_library import MixedLibrary
from osmosis.local.viewing.view_server import ViewAccess, indexed, listen, render_static, serve
from osmosis.viewer.static_site import write_site

from .context import AppContext, current
from .flags import takes
from .output import Mode
from .results import DetailResult, OperationResult
from .run_finder import PLATFORM, RunFinder

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


@dataclass(frozen=True)
class ViewFlags:
    """What `osmosis view` is told."""

    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs by name, here or on the platform; folders of runs, or workspaces "
            "[default: all runs of this workspace]"
        ),
    ] = None
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 0
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write the pages to this folder, as files to share, instead of serving them."),
    ] = None
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link instead of opening a browser.")] = False


@takes(ViewFlags)
def view(flags: ViewFlags) -> OperationResult | int:
    """Look at runs in the browser: figures, rollouts, conversations, comparisons; updated live during a run.

    Listens only on this machine, until Ctrl-C. Rollouts are never changed. A name that no local run has is looked up on
    the platform, and `platform:NAME` always means a run there; it is fetched and shown beside the local ones.

    Example:

        osmosis view
        osmosis view nightly-1 nightly-2
        osmosis view nightly-1 platform:add-2
        osmosis view ~/experiments/.osmosis/runs --port 8000 --no-open
        osmosis view nightly-1 nightly-2 --export report
    """
    ctx = current()
    with RunFinder(ctx) as runs:
        library = _library(ctx, runs, flags.runs or [])
        if flags.export is not None:
            return _export(ctx, library, ctx.path(flags.export))
        return _served(ctx, library, flags)


def _served(ctx: AppContext, library: MixedLibrary, flags: ViewFlags) -> int:
    listener = listen(flags.port)
    access = ViewAccess(listener.getsockname()[1])
    only = library.only()
    link = access.link(f"runs/{quote(only)}" if only else "")

    def ready() -> None:
        if ctx.mode is Mode.JSON:
            fetched = [one.name for one in library.fetched]
            data = {"url": link, "folders": [str(folder) for folder in library.here.folders]}
            ctx.output.show(DetailResult({**data, "platform_runs": fetched} if fetched else data))
        else:
            ctx.output.say(f"{link}\nCtrl-C ends it; the link works once")
        if ctx.interactive and not flags.no_open:
            webbrowser.open(link)

    serve(library, access, listener, ready)
    return 0


def _export(ctx: AppContext, library: MixedLibrary, folder: Path) -> OperationResult:
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


def _library(ctx: AppContext, runs: RunFinder, given: list[str]) -> MixedLibrary:
    cache = cache_dir(ctx.environ)

    def on_platform(client: PlatformClient, name: str) -> Path | PlatformEvaluation:
        return PlatformEvaluation(client, name, cache)

    def found(name: str) -> Path | PlatformEvaluation:
        folder = _folder_of_runs(ctx, name)
        return folder or runs.find(name, of_folder=_itself, of_platform=on_platform)

    opened = {name: found(name) for name in given}
    folders = [one for one in opened.values() if isinstance(one, Path)] if given else [runs_folder(ctx.cwd)]
    fetched = {one.name: one for one in opened.values() if isinstance(one, PlatformEvaluation)}
    if fetched:
        _say_twins(ctx, runs, [name for name, one in opened.items() if isinstance(one, Path)])
    return MixedLibrary(
        DiskLibrary(folders, cache, _author(ctx)), list(fetched.values()), runs_folder(ctx.cwd).parent.parent
    )


def _itself(folder: Path) -> Path | PlatformEvaluation:
    return folder


def _folder_of_runs(ctx: AppContext, name: str) -> Path | None:
    """A folder that is no run of this name, and holds some."""
    try:
        run_folder(name, ctx.cwd)
    except NotFound:
        return ctx.path(name) if DiskLibrary([ctx.path(name)], Path()).names() else None
    return None


def _say_twins(ctx: AppContext, runs: RunFinder, names: list[str]) -> None:
    """Which of these are on both sides."""
    for name in names:
        if runs.on_platform(name):
            here = f"{name} is both a local run and a run on the platform: the local one is shown"
            ctx.output.warn("RUN_ON_BOTH_SIDES", f"{here}; the other is {PLATFORM}{name}")
