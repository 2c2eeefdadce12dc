"""The base model and its tokenizer, or one sentence that says why they cannot be used.

Weights are read from safetensors only; code that a model brings along is never run. What can be known from the files is
checked before anything large is read: that they are all there, and that they fit into memory.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from osmosis.base.json_types import JsonObject
from osmosis.training.link import TrainerPlan

from .training_failed import TrainingFailed, out_of_memory

_SMALLER = 'choose a smaller model, precision = "bf16", or a machine with more memory'
_AGAIN = "upload or download the model again"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_HEADER_LIMIT = 256 * 1024 * 1024
_OVERHEAD = 1.2
"""Buffers, the adapter and its optimizer, while weights are loaded."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A base model, ready for an adapter."""

    model: Any
    tokenizer: Any
    device: Any
    dtype: Any


def device_of(local_rank: int = 0) -> Any:
    """The accelerator of this process, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def dtype_of(plan: TrainerPlan, device: Any) -> Any:
    """Of the base model's weights; the adapter's are always fp32."""
    if plan.precision == "bf16" or (
        plan.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    ):
        return torch.bfloat16
    return torch.float32


def load(plan: TrainerPlan, local_rank: int = 0) -> Loaded:
    """Raises `TrainingFailed` of the kind `model` or `memory`."""
    folder = Path(plan.model_path)
    device = device_of(local_rank)
    dtype = dtype_of(plan, device)
    config = _config(folder)
    tokenizer = load_tokenizer(Path(plan.tokenizer_path or plan.model_path))
    _check_context(plan, config, folder)
    parameters = sum(_parameters(folder / name) for name in _weight_files(folder))
    _check_fits(plan, parameters * dtype.itemsize * _OVERHEAD, device)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        ).to(device)
    except Exception as error:
        # Libraries raise anything here, from OSError to a bug in one architecture's loading.
        if out_of_memory(error):
            raise TrainingFailed(f"out of memory while loading: {error}", kind="memory", hint=_SMALLER) from error
        raise TrainingFailed(f"{folder} cannot be loaded: {error}", kind="model", hint=_AGAIN) from error
    embedded = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embedded:
        raise TrainingFailed(
            f"the tokenizer of {folder} has {len(tokenizer)} tokens, the model only {embedded}",
            kind="model",
            hint="use the tokenizer that the model was trained with",
        )
    return Loaded(model, tokenizer, device, dtype)


def load_tokenizer(folder: Path) -> Any:
    """A tokenizer that can render a conversation and end an answer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise TrainingFailed(
            f"the tokenizer in {folder} cannot be loaded: {error}",
            kind="model",
            hint="add tokenizer.json and tokenizer_config.json of the model",
        ) from error
    if not tokenizer.chat_template:
        raise TrainingFailed(
            f"the tokenizer in {folder} has no chat template, so messages cannot be made into a prompt",
            kind="model",
            hint="train the instruct variant of the model, or add a chat_template.jinja beside its tokenizer",
        )
    if tokenizer.eos_token_id is None:
        raise TrainingFailed(
            f"the tokenizer in {folder} has no end-of-turn token (eos_token), so answers would never end",
            kind="model",
            hint="set eos_token in tokenizer_config.json to the token that ends a turn of the chat template",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _config(folder: Path) -> JsonObject:
    if not folder.is_dir():
        what = "check model_path, or upload the model again"
        raise TrainingFailed(f"there is no model folder {folder}", kind="model", hint=what)
    try:
        config: JsonObject = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise TrainingFailed(f"{folder} has no config.json: it is not a model", kind="model", hint=_AGAIN) from None
    except ValueError as error:
        raise TrainingFailed(f"{folder / 'config.json'} is not JSON: {error}", kind="model", hint=_AGAIN) from error
    if config.get("auto_map"):
        raise TrainingFailed(
            f"{folder} needs Python code of its own (auto_map in config.json), which is not run",
            kind="model",
            hint="use a model whose architecture transformers knows",
        )
    return config


def _weight_files(folder: Path) -> list[str]:
    if (folder / _INDEX).is_file():
        names = sorted(set(json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise TrainingFailed(
                f"{folder} is incomplete: {', '.join(missing[:3])} of {len(names)} weight files is missing"
                if len(missing) == 1
                else f"{folder} is incomplete: {len(missing)} of {len(names)} weight files are missing",
                kind="model",
                hint=_AGAIN,
            )
        return names
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    other = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
    raise TrainingFailed(
        f"{folder} has no safetensors weights" + (f" (only {', '.join(other[:3])})" if other else ""),
        kind="model",
        hint="convert it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) writes safetensors",
    )


def _parameters(path: Path) -> int:
    """From the header of a safetensors file: its length in 8 bytes, then JSON with the shape of every tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_HEADER_LIMIT, path.stat().st_size):
            raise TrainingFailed(f"{path} is not a safetensors file, or cut short", kind="model", hint=_AGAIN)
        try:
            header: JsonObject = json.loads(file.read(length))
        except ValueError as error:
            raise TrainingFailed(f"{path} is not a safetensors file: {error}", kind="model", hint=_AGAIN) from error
    tensors = [value for key, value in header.items() if key != "__metadata__"]
    end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    if path.stat().st_size < 8 + length + end:
        raise TrainingFailed(f"{path} is cut short", kind="model", hint=_AGAIN)
    return sum((t["data_offsets"][1] - t["data_offsets"][0]) // _WIDTHS.get(t["dtype"], 1) for t in tensors)


def _check_context(plan: TrainerPlan, config: JsonObject, folder: Path) -> None:
    known = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    wanted = plan.max_prompt_length + plan.max_response_length
    if isinstance(known, int) and wanted > known:
        raise TrainingFailed(
            f"max_prompt_length + max_response_length are {wanted} tokens, and {folder.name} can read {known}",
            kind="model",
            hint=f"lower them to {known} in all",
        )


def _check_fits(plan: TrainerPlan, needed: float, device: Any) -> None:
    there = plan.max_memory_bytes or free_memory(device)
    if needed > there:
        raise TrainingFailed(
            f"the base model takes about {needed / 1e9:.1f} GB, and {device.type} has {there / 1e9:.1f} GB free",
            kind="memory",
            hint=_SMALLER,
        )


def free_memory(device: Any) -> int:
    """Bytes that this process may still take on that device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text("ascii").strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text("ascii")))
    except (OSError, ValueError):
        pass  # another system: what the first line said
    return free


def peak_memory(device: Any) -> int:
    """The most bytes that this process has taken so far."""
    if device.type == "cuda":
        peak: int = torch.cuda.max_memory_allocated(device)
        return peak
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
