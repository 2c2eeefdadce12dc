import getpass
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from typer import Argument, Option

from osmosis.base.paths import cache_dir
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.output import Mode
from osmosis.cli.core.results import DetailResult, OperationResult
from osmosis.cli.eval.run_sources import PLATFORM, RunFinder
from osmosis.client import PlatformClient
from osmosis.errors import NotFound
from osmosis.local.run_options import run_folder, runs_folder
from osmosis.local.viewing.library import LocalLibrary, PlatformEvaluation
from osmosis.local.viewing.server import ViewAccess, index_runs, listen, render_static, serve
from osmosis.viewer.routes import write_site


@dataclass(frozen=True)
class ViewFlags:
    runs: Annotated[
        list[str] | None,
        Argument(
            help="Runs by name, here or on the platform; folders of runs, or workspaces "
            "[default: all runs of this workspace]",
            autocompletion=completion.local_runs,
        ),
    ] = None
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 0
    export: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            "--export",
            help="Write the pages to this folder, as files to share, instead of serving them.",
        ),
    ] = None
    no_open: Annotated[bool, Option(help="Print the link instead of opening a browser.")] = False


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
        osmosis view nightly-1 nightly-2 --output report
    """
    ctx = current()
    library = _library(ctx, RunFinder(ctx), flags.runs or [])
    if flags.export is not None:
        folder = ctx.path(flags.export)
        index_runs(library, lambda name, share: ctx.output.say(f"indexing {name}: {share:.0f} %"))

        def written(count: int) -> None:
            if count % 500 == 0:
                ctx.output.say(f"{count:,} pages written")

        count = write_site(library, folder, render_static, written)
        resource = {"path": str(folder), "pages": count}
        return OperationResult("view.export", f"{count:,} pages written: open {folder / 'index.html'}", resource)
    return _served(ctx, library, flags)


def _served(ctx: AppContext, library: LocalLibrary, flags: ViewFlags) -> int:
    listener = listen(flags.port)
    access = ViewAccess(listener.getsockname()[1])
    only = library.only_run()
    link = access.link(f"runs/{quote(only)}" if only else "")

    def ready() -> None:
        if ctx.mode is Mode.JSON:
            fetched = [evaluation.name for evaluation in library.remote]
            data = {"url": link, "folders": [str(folder) for folder in library.folders]}
            ctx.output.show(DetailResult({**data, "platform_runs": fetched} if fetched else data))
        else:
            if library.is_empty():
                ctx.output.say(f"no runs yet in {library.folders[0]}; the page shows them as they are made")
            ctx.output.say(f"{link}\nCtrl-C ends it; the link works once")
        if ctx.interactive and not flags.no_open:
            webbrowser.open(link)

    serve(library, access, listener, ready)
    return 0


def _author(ctx: AppContext) -> str:
    try:
        return ctx.environ.get("OSMOSIS_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "somebody"


def _library(ctx: AppContext, runs: RunFinder, names: list[str]) -> LocalLibrary:
    cache = cache_dir(ctx.environ)

    def on_platform(client: PlatformClient, name: str) -> Path | PlatformEvaluation:
        return PlatformEvaluation(client, name, cache)

    def find_source(name: str) -> Path | PlatformEvaluation:
        folder = _folder_of_runs(ctx, name)
        return folder or runs.find(name, of_folder=lambda found_folder: found_folder, of_platform=on_platform)

    opened = {name: find_source(name) for name in names}
    local_runs = {name: source for name, source in opened.items() if isinstance(source, Path)}
    fetched = {source.name: source for source in opened.values() if isinstance(source, PlatformEvaluation)}
    for name in local_runs if fetched else ():
        if runs.on_platform(name):
            message = f"{name} is both a local run and a run on the platform: the local one is shown"
            ctx.output.warn("RUN_ON_BOTH_SIDES", f"{message}; the other is {PLATFORM}{name}")
    runs_dir = runs_folder(ctx.cwd)
    folders = list(local_runs.values()) if names else [runs_dir]
    return LocalLibrary(folders, cache, _author(ctx), list(fetched.values()), runs_dir.parent.parent)


def _folder_of_runs(ctx: AppContext, name: str) -> Path | None:
    try:
        run_folder(name, ctx.cwd)
    except NotFound:
        return None if LocalLibrary([ctx.path(name)], Path()).is_empty() else ctx.path(name)
    return None
