"""`osmosis model serve`: a model of the platform, or a folder, answers OpenAI clients on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base import paths
from osmosis.errors import NotFound, ValidationError
from osmosis.jobs.local_serving import LocalModel, LocalServing, serve_here
from osmosis.records.run import LogLine

from .context import AppContext, current
from .download import byte_progress
from .results import OperationResult

if TYPE_CHECKING:
    from osmosis.client import PlatformClient
    from osmosis.client.models import Kind


def serve(
    name: Annotated[str, typer.Argument(help="A model of the platform, or the folder of a base model")],
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter for the model")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback [default: a free one]")] = 0,
) -> OperationResult:
    """Serve a model on this machine until Ctrl-C, OpenAI-compatible.

    Prints its address and a key that is valid until then. A model on the platform is downloaded first. The trainer's
    environment is created when it does not exist yet.

    Example:
        osmosis model serve multiply-1
        osmosis model serve ./tiny-qwen --adapter ./adapter --port 8000
    """
    ctx = current()
    model = located(ctx, name, adapter)
    answered = asyncio.run(_serve(ctx, model, port))
    message = f"{model.name} was served: {answered} {'answer' if answered == 1 else 'answers'}"
    return OperationResult("model.serve", message, {"model": model.name, "answers": answered})


async def _serve(ctx: AppContext, model: LocalModel, port: int) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    announced: list[LocalServing] = []

    def ready(served: LocalServing) -> None:
        announced.append(served)
        _announce(ctx, model, served)

    ctx.output.say(f"loading {model.name}", style="dim")
    serving = asyncio.create_task(
        serve_here(
            model,
            paths.data_dir(ctx.environ) / "cache",  # where a platform of this machine has the same environment
            ctx.environ,
            port=port,
            log=lambda line: _remark(ctx, line),
            ready=ready,
            stop=stop,
        )
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done() and not announced:  # nothing is worth waiting for while it loads
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return 0
    return await serving


def _announce(ctx: AppContext, model: LocalModel, served: LocalServing) -> None:
    row = {"model": model.name, "base_url": served.url, "api_key": served.key}
    ctx.output.stream(row, f"serving {model.name} at {served.url}, API key: {served.key}")
    ctx.output.say("Ctrl-C ends it", style="dim")


def _remark(ctx: AppContext, line: LogLine) -> None:
    if line.level != "debug":
        ctx.output.say(line.message, style="dim")


def located(ctx: AppContext, name: str, adapter: Path | None) -> LocalModel:
    """Where the model is on this machine, after a download when it is the platform's."""
    folder = ctx.path(name)
    if folder.is_dir():
        place = ctx.path(adapter) if adapter else None
        if place is not None and not (place / "adapter_config.json").is_file():
            raise ValidationError(f"{place} holds no adapter: it has no adapter_config.json", hint="--adapter FOLDER")
        return LocalModel(folder.resolve().name, str(folder.resolve()), str(place.resolve()) if place else "")
    if adapter is not None:
        raise ValidationError(f"there is no folder {folder}", hint="--adapter belongs to the folder of a base model")
    with ctx.client() as client:
        kind, row = client.models.find(name)
        shown = row.model_name or name
        here = _fetched(ctx, client, kind, shown)
        if kind == "base":
            return LocalModel(shown, str(here))
        base = row.base_model or ""
        try:
            base_path = str(_fetched(ctx, client, "base", client.models.base(base).model_name or base))
        except NotFound:  # a hub name, which is fetched when it is loaded
            base_path = base
        return LocalModel(shown, base_path, str(here))


def _fetched(ctx: AppContext, client: PlatformClient, kind: Kind, name: str) -> Path:
    """The folder with the files of a model; what is there already is not fetched again."""
    found = client.models.files(kind, name)
    folder = paths.cache_dir(ctx.environ) / "models" / kind / found.name
    with byte_progress(ctx, sum(file.size for file in found.files), f"fetching {found.name}") as moved:
        for file in found.files:
            client.models.fetch(file, folder, moved)
    return folder
