from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.base import paths
from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import OperationResult
from osmosis.cli.model.commands import fetch_to_cache, variables_of
from osmosis.errors import NotFound, ValidationError
from osmosis.jobs.kinds.model import LocalModel, LocalServing, serve_here
from osmosis.records.run.job import LogLine


def serve(
    name: Annotated[str, Argument(help="A model, or the folder of a base model", autocompletion=completion.models)],
    adapter: Annotated[Path | None, Option(help="Folder of an adapter for the model")] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port on loopback [default: a free one]")] = 0,
) -> OperationResult:
    """Serve a model on this machine until Ctrl-C: chat completions, Messages, Responses, generateContent.

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
        variables = variables_of(served.url, served.key, model.name)
        row = {"model": model.name, "base_url": served.url, "api_key": served.key, "variables": variables}
        lines = [f"serving {model.name} at {served.url}, API key: {served.key}"]
        lines += [f'export {name}="{value}"' for name, value in variables.items()]
        ctx.output.stream(row, "\n".join(lines))
        ctx.output.say("Ctrl-C ends it", style="dim")

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


def _remark(ctx: AppContext, line: LogLine) -> None:
    if line.level != "debug":
        ctx.output.say(line.message, style="dim")


def located(ctx: AppContext, name: str, adapter: Path | None) -> LocalModel:
    folder = ctx.path(name).resolve()
    if folder.is_dir():
        adapter_folder = str(ctx.path(adapter).resolve()) if adapter else ""
        if adapter and not Path(adapter_folder, "adapter_config.json").is_file():
            message = f"{adapter_folder} holds no adapter: it has no adapter_config.json"
            raise ValidationError(message, hint="--adapter FOLDER")
        return LocalModel(folder.name, str(folder), adapter_folder)
    if adapter is not None:
        raise ValidationError(f"there is no folder {folder}", hint="--adapter belongs to the folder of a base model")
    with ctx.client() as client:
        kind, row = client.models.find(name)
        label = row.model_name or name
        model_folder = fetch_to_cache(ctx, client, kind, row)
        if kind == "base" or row.tune == "full":
            return LocalModel(label, str(model_folder))
        base = row.base_model or ""
        try:
            base_path = str(fetch_to_cache(ctx, client, "base", client.models.base(base)))
        except NotFound:  # a hub name, which is fetched when it is loaded
            base_path = base
        return LocalModel(label, base_path, str(model_folder))
