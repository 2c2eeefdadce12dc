"""Load the base model and tokenizer, from safetensors alone; a model's own code is never run."""

import json
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import is_liger_kernel_available

from osmosis.base.model_folder import check_model
from osmosis.errors import ValidationError
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.service import TrainingFailed, out_of_memory

_SMALLER = 'choose a smaller model, precision = "bf16", or a machine with more memory'
_AGAIN = "upload or download the model again"
_OVERHEAD = 1.2
_QUANTIZED = 0.35  # Share of the memory that 16 bits take: linear layers have 4.1 bits, embeddings and head 16


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Any
    tokenizer: Any
    device: Any
    dtype: Any


def load(plan: TrainerPlan, local_rank: int = 0) -> Loaded:
    folder = Path(plan.model_path)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    is_half = plan.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    dtype = torch.bfloat16 if is_half or plan.precision == "bf16" else torch.float32
    try:
        facts = check_model(folder)
    except ValidationError as error:
        raise TrainingFailed(error.message, hint=error.hint or _AGAIN) from error
    if json.loads((folder / "config.json").read_bytes()).get("auto_map"):
        message = f"{folder} needs Python code of its own (auto_map in config.json), which is not run"
        raise TrainingFailed(message, hint="use a model whose architecture transformers knows")
    tokenizer = load_tokenizer(Path(plan.tokenizer_path or plan.model_path))
    tokens = plan.max_prompt_length + plan.max_response_length
    if facts.context_length is not None and tokens > facts.context_length:
        raise TrainingFailed(
            f"max_prompt_length + max_response_length are {tokens} tokens, and the base model can read "
            f"{facts.context_length}",
            hint=f"lower them to {facts.context_length} in all",
            kind="data",
        )
    # Sharded, each process reads the model into the machine's memory, and takes its part of it to the GPU.
    home = torch.device("cpu") if plan.is_sharded else device
    needed = facts.parameters * dtype.itemsize * _OVERHEAD * (plan.processes if plan.is_sharded else 1)
    needed *= _QUANTIZED if plan.quantize else 1
    available = plan.max_memory_bytes or free_memory(home)
    if needed > available:
        message = f"the base model takes about {needed / 1e9:.1f} GB, and {home.type} has {available / 1e9:.1f} GB free"
        raise TrainingFailed(message, kind="memory", hint=_SMALLER)
    in_4_bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            quantization_config=in_4_bits if plan.quantize else None,
            device_map={"": home} if plan.quantize else None,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        ).to(home)
    except Exception as error:
        # Libraries raise anything here, from OSError to a bug in one architecture's loading.
        if out_of_memory(error):
            raise TrainingFailed(f"out of memory while loading: {error}", kind="memory", hint=_SMALLER) from error
        raise TrainingFailed(f"{folder} cannot be loaded: {error}", hint=_AGAIN) from error
    embedded = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embedded:
        message = f"the tokenizer of {folder} has {len(tokenizer)} tokens, the model only {embedded}"
        raise TrainingFailed(message, hint="use the tokenizer that the model was trained with")
    fuse_kernels(model)
    return Loaded(model, tokenizer, device, dtype)


def fuse_kernels(model: Any) -> None:
    """Use Liger's kernels on a GPU for models that it knows; the head and its loss are the trainer's own."""
    if model.device.type == "cuda" and is_liger_kernel_available():
        apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})


def load_teacher(plan: TrainerPlan, student: Loaded) -> Any:
    """Return the model that `distill` follows, where the student is. Raise `TrainingFailed` for another tokenizer."""
    as_it_is = {"model_path": plan.teacher_path, "shard": False, "quantize": None}
    loaded = load(plan.model_copy(update=as_it_is), student.device.index or 0)
    if loaded.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        message = f"the tokenizer of the teacher in {plan.teacher_path} is not that of the model"
        raise TrainingFailed(message, hint="name a teacher of the same family, whose tokens have the same ids")
    return loaded.model.eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        hint = "add tokenizer.json and tokenizer_config.json of the model"
        raise TrainingFailed(f"the tokenizer in {folder} cannot be loaded: {error}", hint=hint) from error
    if not tokenizer.chat_template:
        hint = "train the instruct variant of the model, or add a chat_template.jinja beside its tokenizer"
        message = f"the tokenizer in {folder} has no chat template, so messages cannot be made into a prompt"
        raise TrainingFailed(message, hint=hint)
    if tokenizer.eos_token_id is None:
        hint = "set eos_token in tokenizer_config.json to the token that ends a turn of the chat template"
        message = f"the tokenizer in {folder} has no end-of-turn token (eos_token), so answers would never end"
        raise TrainingFailed(message, hint=hint)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def free_memory(device: Any) -> int:
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no limit, or another system
        free = min(free, int((group / "memory.max").read_bytes()) - int((group / "memory.current").read_bytes()))
    return free


def peak_memory(device: Any) -> int:
    if device.type == "cuda":
        peak: int = torch.cuda.max_memory_allocated(device)
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
