"""The base model's files on this machine: a folder as it is, a hub name fetched once into the cache.

The trainer never reaches the network; what it needs is fetched here, by the hub's own client in the trainer's
environment: safetensors, config and tokenizer files, nothing that could run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis.base.locks import locked_async
from osmosis.base.model_folder import check_model
from osmosis.errors import ValidationError
from osmosis.records.rollout import Category

from .commands import run_command
from .environ import machine_environ
from .job import TAIL_LINES, JobContext, setup_failed
from .uv import no_network, reason

STEP = "base-model"
FETCH_S = 6 * 3600.0
FETCH = """
import sys
from huggingface_hub import snapshot_download
patterns = ["*.json", "*.txt", "*.jinja", "*.model", "*.safetensors"]
print(snapshot_download(sys.argv[1], local_dir=sys.argv[2], allow_patterns=patterns))
"""
MARKER = ".complete"


async def base_model_folder(context: JobContext, python: Path) -> Path:
    """The folder of the run's base model; `python` is the trainer's. Raises `JobFailed`."""
    named = context.spec.model_path or context.spec.config.experiment.model_path
    folder = Path(named)
    if not folder.is_absolute():
        if named.startswith("osmosis/"):
            what = f"{named} is a model hosted by this platform, and the job was not told where it lies"
            raise setup_failed(what, fix="submit the run again", category=Category.MODEL_NOT_FOUND)
        folder = context.cache_dir / "hub" / named.replace("/", "--")
        async with locked_async(folder.parent / ".locks" / folder.name):
            if not (folder / MARKER).exists():
                await _fetch(context, python, named, folder)
    try:
        facts = await asyncio.to_thread(check_model, folder)
    except ValidationError as problem:
        what = f"the base model {named} cannot be used: {problem.message}"
        raise setup_failed(what, fix=problem.hint, category=Category.MODEL_NOT_FOUND) from problem
    words = f"{facts.architecture}, {facts.parameters / 1e6:.1f} M parameters"
    context.log.write(STEP, f"base model {context.spec.config.experiment.model_path}: {words}")
    return folder


async def _fetch(context: JobContext, python: Path, named: str, folder: Path) -> None:
    context.log.write(STEP, f"fetching {named} from the hub, once for this machine")
    environ = machine_environ(context.environ)
    if token := context.secrets.get("HF_TOKEN"):
        environ["HF_TOKEN"] = token  # of a model that asks for a licence
    folder.mkdir(parents=True, exist_ok=True)
    done = await run_command(
        (str(python), "-I", "-c", FETCH, named, str(folder)),
        cwd=folder,
        environ={**environ, "HF_HUB_DISABLE_TELEMETRY": "1"},
        timeout_s=FETCH_S,
        log=context.log.stream(STEP, "debug"),
        started=context.leftovers.add,
    )
    if done.ok:
        (folder / MARKER).touch()
        return
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    if no_network(done.output) or "ConnectionError" in done.output or "ConnectError" in done.output:
        what = f"the base model {named} cannot be fetched: the hub cannot be reached from this machine"
        fix = "osmosis model upload FOLDER from a machine that has it, and name that model in model_path"
        raise setup_failed(what, fix=fix, category=Category.CONNECTION, tail=tail)
    fix = "check the name, list HF_TOKEN in [secrets] for a model with a licence, or: osmosis model upload FOLDER"
    what = f"the base model {named} cannot be fetched: {reason(done.output)}"
    raise setup_failed(what, fix=fix, category=Category.MODEL_NOT_FOUND, tail=tail)
