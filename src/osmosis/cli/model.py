import asyncio
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from typer import Argument, Option

from osmosis.base import paths
from osmosis.base.installation import extra_command
from osmosis.base.model_folder import check_model, list_model_files
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.connect import Cursor, Everything, Lines, Paging
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.eval.follow import log_result
from osmosis.client import PlatformClient
from osmosis.client.files import Kind, announce_file
from osmosis.errors import NotFound, PlatformError, UsageError, ValidationError
from osmosis.jobs.kinds.model import LocalModel, LocalServing, serve_here
from osmosis.metrics.formats import size
from osmosis.records.api.training import MergeRequest, ModelMerge, ModelRow
from osmosis.records.run.job import LogLine
from osmosis.records.run.status import RunStatus
from osmosis.serve.client.program_agent import load_harnesses

INFERENCE_URL = "OSMOSIS_INFERENCE_URL"
POLL_S = 0.5
WAIT_S = 1800.0
ASK = "ask it, with the token of `osmosis token create NAME`"
Name = Annotated[str, Argument(help="A model; a training run: its best checkpoint", autocompletion=completion.models)]
Wait = Annotated[bool, Option("--wait", help="Wait until the model answers")]


def list_models(
    kind: Annotated[Literal["all", "base", "lora"], Option("--type", help="Which models")] = "all",
    limit: Annotated[int | None, Option(min=1, max=50, help="Show at most N of each [default: 50]")] = None,
    everything: Everything = False,
) -> ListResult:
    """List base models and checkpoints of training.

    Example:
        osmosis model list --type lora
    """
    paging = Paging(limit, everything)
    blocks: dict[str, list[dict[str, object]]] = {}
    client = current().client()
    for each in ("base", "lora") if kind == "all" else (kind,):
        rows = client.models.all(each) if everything else client.models.page(each, limit=paging.size).models
        blocks[each] = [row.to_dict() for row in rows]
    items = [{**row, "type": row.get("tune") or each} for each, rows_of_kind in blocks.items() for row in rows_of_kind]
    columns = [
        *build_columns("model_name=Name", "type=Type", "base_model=Base", "training_run_name=From run"),
        Column("checkpoint_step", "Step", justify="right"),
        Column("reward", "Reward", justify="right"),
        Column("deployment_state", "Deployed"),
        Column("created_at", "Created", show=when, wide=True),
    ]
    extra = {f"{each}_models": rows_of_kind for each, rows_of_kind in blocks.items()}
    empty = "no models yet: osmosis model upload FOLDER; osmosis train submit makes more"
    return ListResult(items, columns, empty=empty, extra=extra)


def info(name: Name) -> DetailResult:
    """Show one model, a checkpoint or a base model.

    Example:
        osmosis model show multiply-1-step-20
    """
    ctx = current()
    _, row = ctx.client().models.find(name)
    data = {**row.to_dict(), **describe_inference(row, ctx.environ)}
    steps = [NextStep(ASK, command=example(row, ctx.environ))] if row.deployment_state == "serving" else []
    brief = {**data, "size": size(row.size)} if row.size else None
    return DetailResult(data, title=row.model_name or name, next_steps=steps, brief=brief)


def upload(
    folder: Annotated[Path, Argument(help="The folder that save_pretrained wrote, with the tokenizer in it")],
    name: Annotated[str | None, Option(help="Name of the model [default: the folder's]")] = None,
) -> OperationResult:
    """Check a base model and upload it. An interrupted upload continues where it stopped.

    Only safetensors weights, the config and the tokenizer files are sent; never code.

    Example:
        osmosis model upload ./tiny-qwen
        osmosis model upload ./checkpoint --name tiny-qwen-warm
    """
    ctx = current()
    source = ctx.path(folder)
    facts = check_model(source)
    files = list_model_files(source)
    called = name or source.resolve().name
    client = ctx.client()
    with ctx.output.bar(f"reading {called}", facts.size, in_bytes=True) as read:
        listed = []
        for path in files:
            listed.append(announce_file(path))
            read(listed[-1].size)
    waiting = client.models.announce(called, listed)
    missing = waiting.missing_bytes
    if waiting.status == "ready":
        message = f"base model {called} is already on the platform, with the same files"
        return OperationResult("model.upload", message, {**waiting.to_dict(), "uploaded": False})
    with ctx.output.bar(f"sending {called}", missing, in_bytes=True) as moved:
        row = client.models.send(waiting, source, moved)
    steps = [NextStep("train it", command=f'model_path = "{called}" in configs/training/NAME.toml')]
    template = "" if facts.chat_template else ", no chat template (training needs one)"
    described = f"{facts.architecture}, {facts.parameters / 1e6:.1f} M parameters{template}"
    message = f"base model {called} is ready: {described}; {size(missing)} sent"
    return OperationResult("model.upload", message, {**row.to_dict(), "uploaded": True}, next_steps=steps)


def download(
    name: Name,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder to write to [default: models/NAME]")] = None,
    form: Annotated[
        Literal["safetensors", "gguf"],
        Option("--format", help="gguf: one file for llama.cpp and Ollama, and a Modelfile"),
    ] = "safetensors",
    precision: Annotated[Literal["f32", "f16", "q8_0"], Option("--dtype", help="Type of the weights in GGUF")] = "f16",
) -> OperationResult:
    """Download a base model, or what was trained: an adapter, or every weight.

    Files that you already have are not downloaded again. As GGUF, an adapter is merged into its base model first.

    Example:
        osmosis model download multiply-1-step-20
        osmosis model download multiply-1 -o ./adapter --yes
        osmosis model download multiply-1 --format gguf --dtype q8_0
    """
    ctx = current()
    if form == "gguf":
        return _download_gguf(ctx, name, output, precision)
    client = ctx.client()
    kind, row = client.models.find(name)
    listing = client.models.files(kind, row.model_name or name)
    folder = ctx.path(output) if output else ctx.cwd / "models" / listing.name
    total = sum(file.size for file in listing.files)
    prompts.agree(ctx, f"Download {len(listing.files)} files, {size(total)}, to {folder}?", "model.download")
    with ctx.output.bar(f"fetching {listing.name}", total, in_bytes=True) as moved:
        fetched = [client.models.fetch(file, folder, moved) for file in listing.files]
    resource = {"name": listing.name, "type": listing.type, "path": str(folder), "bytes": total}
    resource |= {"base_model": listing.base_model, "files": len(fetched), "files_fetched": sum(fetched)}
    return OperationResult("model.download", f"{listing.name} is in {folder}", resource)


def _download_gguf(ctx: AppContext, name: str, output: Path | None, precision: str) -> OperationResult:
    try:
        from osmosis.cli.gguf_file import write_gguf  # an extra
    except ImportError as error:
        raise UsageError(f"--format gguf needs a library: {error}", hint=extra_command("gguf")) from None
    client = ctx.client()
    kind, row = client.models.find(name)
    label = row.model_name or name
    if kind == "lora" and row.tune != "full":
        try:
            kind, row = "base", client.models.base(f"{label}-merged")
        except NotFound:
            ctx.output.say(f"merging {label} into its base model", style="dim")
            started = client.models.merge(label, MergeRequest())
            kind, row = "base", client.models.base(_done(client, started.id or label).model_name or label)
    source = fetch_to_cache(ctx, client, kind, row)
    folder = ctx.path(output) if output else ctx.cwd / "models" / label
    file = folder / f"{label}.gguf"
    write_gguf(source, file, precision)
    resource = {"name": label, "type": "gguf", "path": str(file), "bytes": file.stat().st_size}
    steps = [NextStep("run it with Ollama", command=f"ollama create {label} -f {folder / 'Modelfile'}")]
    return OperationResult("model.download", f"{label} is in {file}", resource, next_steps=steps)


def fetch_to_cache(ctx: AppContext, client: PlatformClient, kind: Kind, row: ModelRow) -> Path:
    listing = client.models.files(kind, row.model_name or "")
    folder = paths.cache_dir(ctx.environ) / "models" / kind / (row.id or listing.name)
    with ctx.output.bar(f"fetching {listing.name}", sum(file.size for file in listing.files), in_bytes=True) as moved:
        for file in listing.files:
            client.models.fetch(file, folder, moved)
    return folder


def delete(name: Name) -> OperationResult:
    """Delete a model and its files. Refused while a run uses it.

    Example:
        osmosis model delete multiply-1-step-20 --yes
    """
    ctx = current()
    client = ctx.client()
    kind, row = client.models.find(name)
    label = row.model_name or name
    kind_label = "base model" if kind == "base" else "checkpoint" if row.tune == "full" else "adapter"
    if not prompts.confirm(ctx, f"Delete {kind_label} {label} and its files?"):
        return OperationResult("model.delete", "Cancelled.", row.to_dict(), status="cancelled")
    client.models.delete(kind, label)
    return OperationResult("model.delete", f"{kind_label} {label} is deleted", row.to_dict())


def deploy(name: Name, wait: Wait = False) -> OperationResult:
    """Serve a model on the platform, for every OpenAI-compatible client, until it is undeployed.

    Example:
        osmosis model deploy multiply-1 --wait
        osmosis model deploy multiply-1-step-20
    """
    ctx = current()
    client = ctx.client()
    deployment = client.models.deploy(name)
    label = deployment.model_name or name
    _, row = client.models.find(label)
    if wait:
        row = _until_served(ctx, client, label)
    state = row.deployment_state or deployment.state or "starting"
    message = f"model {label} is deployed" if state == "serving" else f"model {label} is being loaded"
    steps = [NextStep(ASK, command=example(row, ctx.environ))]
    if state != "serving":
        steps.insert(0, NextStep("see whether it answers", command=f"osmosis model show {label}"))
    resource = {**deployment.to_dict(), **describe_inference(row, ctx.environ), "state": state}
    return OperationResult("model.deploy", message, resource, next_steps=steps)


def undeploy(name: Name) -> OperationResult:
    """Stop serving a model. Requests in flight are answered first.

    Example:
        osmosis model undeploy multiply-1-step-20
    """
    row = current().client().models.undeploy(name)
    return OperationResult("model.undeploy", f"model {row.model_name or name} is {row.status}", row.to_dict())


def logs(name: Name, limit: Lines = 50, cursor: Cursor = None) -> ListResult:
    """Show the log of a model's deployment.

    Example:
        osmosis model logs multiply-1-step-20
    """
    ctx = current()
    page = ctx.client().models.logs(name, limit=limit, cursor=cursor)

    return log_result(ctx, page, page.logs)


def describe_inference(row: ModelRow, environ: Mapping[str, str]) -> dict[str, str]:
    base = environ.get(INFERENCE_URL, "").rstrip("/")
    url = (base if base.endswith("/v1") else f"{base}/v1") if base else row.inference_url or ""
    return {"inference_url": url, "inference_model": row.inference_model or row.model_name or ""}


def example(row: ModelRow, environ: Mapping[str, str]) -> str:
    at = describe_inference(row, environ)
    question = f'{{"model": "{at["inference_model"]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    head = f'curl {at["inference_url"]}/chat/completions -H "Authorization: Bearer $OSMOSIS_TOKEN"'
    return f"{head} -H 'Content-Type: application/json' -d '{question}'"


def _until_served(ctx: AppContext, client: PlatformClient, name: str) -> ModelRow:
    ctx.output.say(f"loading {name}; the first time, the trainer's environment is made", style="dim")
    deadline = time.monotonic() + WAIT_S
    while True:
        _, row = client.models.find(name)
        if row.deployment_state == "serving":
            return row
        if row.deployment_state in ("failed", "stopped", "stopping"):
            reason = row.deployment_message or f"it is {row.deployment_state}"
            raise PlatformError(f"model {name} could not be deployed: {reason}", hint=f"osmosis model logs {name}")
        if time.monotonic() > deadline:
            raise PlatformError(f"model {name} is still being loaded", hint=f"osmosis model logs {name}")
        time.sleep(POLL_S)


def merge(
    name: Name,
    new_name: Annotated[str | None, Option("--name", help="Its name [default: the adapter's name and -merged]")] = None,
    dtype: Annotated[Literal["auto", "fp32", "bf16"], Option(help="Type of its weights; auto: the base's")] = "auto",
    wait: Annotated[bool, Option("--wait/--no-wait", help="Wait until it is merged")] = True,
) -> OperationResult:
    """Merge an adapter into its base model. The result is a full safetensors model in the model store.

    A checkpoint of full fine-tuning becomes one as it is.

    Example:
        osmosis model merge multiply-1
        osmosis model merge multiply-1-step-20 --name multiply-v1 --dtype bf16
    """
    ctx = current()
    client = ctx.client()
    started = client.models.merge(name, MergeRequest(name=new_name, dtype=dtype))
    merged_name = started.model_name or name
    if not wait:
        steps = [NextStep("see the result", command=f"osmosis model show {merged_name}")]
        message = f"{started.merged_from} is being merged into {merged_name}"
        return OperationResult("model.merge", message, started.to_dict(), next_steps=steps)
    ctx.output.say(f"merging {started.merged_from} into {merged_name}; Ctrl-C leaves it running", style="dim")
    done = _done(client, started.id or merged_name)
    row = client.models.base(merged_name)
    steps = [
        NextStep("serve it", command=f"osmosis model deploy {merged_name}"),
        NextStep("take it with you", command=f"osmosis model download {merged_name}"),
    ]
    resource = {**row.to_dict(), "merged_from": done.merged_from}
    return OperationResult("model.merge", f"{done.merged_from} is merged: {merged_name}", resource, next_steps=steps)


def _done(client: PlatformClient, merge_id: str) -> ModelMerge:
    while True:
        merge = client.models.merged(merge_id)
        if merge.status == RunStatus.FINISHED.value:
            return merge
        if merge.status is None or RunStatus(merge.status).over:
            reason = merge.message or f"it is {merge.status}"
            raise PlatformError(f"{merge.merged_from} was not merged: {reason}", hint=merge.fix)
        time.sleep(POLL_S)


def variables_of(url: str, key: str, model: str) -> dict[str, str]:
    """Return the variables with which every client library and agent program asks this model; `url` ends in /v1."""
    return {
        "MODEL": model,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": key,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": url.removesuffix("/v1"),
        "GEMINI_API_KEY": key,
    }


def use(name: Name) -> DetailResult:
    """Show the variables and commands with which agent programs use a deployed model.

    The key is your token: the variables name it, and do not hold it.

    Example:
        eval "$(osmosis model use multiply-1 | grep ^export)"
        osmosis model use multiply-1
    """
    ctx = current()
    at = describe_inference(ctx.client().models.find(name)[1], ctx.environ)
    variables = variables_of(at["inference_url"], "$OSMOSIS_TOKEN", at["inference_model"])
    programs = {name: harness.use for name, harness in load_harnesses().items()}
    fields = {"variables": variables, "programs": programs}
    return DetailResult(fields, human=lambda console: _draw(console, variables, programs))


def _draw(console: Console, variables: Mapping[str, str], programs: Mapping[str, str]) -> None:
    for name, value in variables.items():
        console.print(f'export {name}="{value}"', highlight=False, soft_wrap=True, markup=False)
    for program, command in programs.items():
        console.print(f"# {program}: {command}", highlight=False, soft_wrap=True, markup=False)


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
    client = ctx.client()
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
