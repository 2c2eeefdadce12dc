"""The base model's files on this machine: a folder as it is, or a hub name fetched once into the cache. The trainer has
no network, so the hub's client runs here, in the trainer's environment, and fetches safetensors, config and tokenizer
files: nothing that could run."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from osmosis.base.locks import locked_async
from osmosis.base.model_folder import check_model, check_tokenizer
from osmosis.errors import ValidationError
from osmosis.jobs.commands import machine_environ, run_command
from osmosis.jobs.context import TAIL_LINES, JobContext, setup_failure
from osmosis.jobs.prepare.uv import is_network_failure, reason
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.rollout import Category

STEP = "base-model"
FETCH_S = 6 * 3600.0
FETCH = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], local_dir=sys.argv[2], allow_patterns=sys.argv[3:]))
"""
TEXTS = ("*.json", "*.txt", "*.jinja", "*.model")
ALL = (*TEXTS, "*.safetensors")
MARKER = ".complete"


async def base_model_folder(context: JobContext, python: Path, named: str = "") -> Path:
    named = named or context.spec.model_path or context.spec.named_model
    folder = Path(named)
    if not folder.is_absolute():
        if named.startswith("osmosis/"):
            message = f"{named} is a model hosted by this platform, and the job was not told where it is stored"
            raise setup_failure(message, fix="submit the run again", category=Category.MODEL_NOT_FOUND)
        folder = context.cache_dir / "hub" / named.replace("/", "--")
        async with locked_async(folder.parent / ".locks" / folder.name):
            if not (folder / MARKER).exists():
                await _fetch(context, python, named, folder)
    try:
        facts = await asyncio.to_thread(check_model, folder)
    except ValidationError as problem:
        message = f"the base model {named} cannot be used: {problem.message}"
        raise setup_failure(message, fix=problem.hint, category=Category.MODEL_NOT_FOUND) from problem
    size = f"{facts.architecture}, {facts.parameters / 1e6:.1f} M parameters"
    context.log.write(STEP, f"base model {context.spec.named_model}: {size}")
    return folder


async def tokenizer_folder(context: JobContext, config: TrainingConfig, python: Path) -> Path:
    named = context.spec.tokenizer_path or config.advanced.tokenizer or config.experiment.model_path
    folder = Path(named)
    if not folder.is_absolute():
        folder = context.cache_dir / "hub" / f"{named.replace('/', '--')}--tokenizer"
        async with locked_async(folder.parent / ".locks" / folder.name):
            if not (folder / MARKER).exists():
                await _fetch(context, python, named, folder, TEXTS)
    try:
        await asyncio.to_thread(check_tokenizer, folder)
    except ValidationError as problem:
        message = f"the tokenizer {named} cannot be used: {problem.message}"
        fix = "name another one in [advanced].tokenizer: a base model of the platform, a hub name or a folder"
        raise setup_failure(message, fix=fix, category=Category.MODEL_NOT_FOUND) from problem
    context.log.write(STEP, f"tokenizer: {named}")
    return folder


async def _fetch(context: JobContext, python: Path, named: str, folder: Path, patterns: Sequence[str] = ALL) -> None:
    context.log.write(STEP, f"fetching {named} from the hub, once for this machine")
    environ = machine_environ(context.environ)
    if token := context.secrets.get("HF_TOKEN"):
        environ["HF_TOKEN"] = token  # of a model that asks for a licence
    folder.mkdir(parents=True, exist_ok=True)
    done = await run_command(
        (str(python), "-I", "-c", FETCH, named, str(folder), *patterns),
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
    if is_network_failure(done.output) or "ConnectionError" in done.output or "ConnectError" in done.output:
        message = f"the base model {named} cannot be fetched: the hub cannot be reached from this machine"
        fix = "osmosis model upload FOLDER from a machine that has it, and name that model in model_path"
        raise setup_failure(message, fix=fix, category=Category.CONNECTION, tail=tail)
    fix = "check the name, list HF_TOKEN in [secrets] for a model with a licence, or: osmosis model upload FOLDER"
    message = f"the base model {named} cannot be fetched: {reason(done.output)}"
    raise setup_failure(message, fix=fix, category=Category.MODEL_NOT_FOUND, tail=tail)
