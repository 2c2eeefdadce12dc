"""A model's folder as one GGUF file with an Ollama Modelfile: Llama, Qwen2 and Qwen3 with byte-level BPE."""

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf.utility import SafetensorsLocal
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError

FAMILIES = ("Llama", "Qwen2", "Qwen3")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {QWEN2_SPLIT: "qwen2", QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|"): "llama-bpe"}
"""llama.cpp's names for how text is cut before merges, by the expression in tokenizer.json."""


def write_gguf(folder: Path, output: Path, precision: str) -> None:
    """Write the file, and `Modelfile` beside it. Raise ValidationError for a model of another kind."""
    config, tokenizer = (json.loads((folder / name).read_bytes()) for name in ("config.json", "tokenizer.json"))
    family, size = config["architectures"][0].removesuffix("ForCausalLM"), config["vocab_size"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if family not in FAMILIES:
        raise _unknown(f"it is a {config['architectures'][0]}, and neither {' nor '.join(FAMILIES)}")
    if (kind := rope.get("rope_type", rope.get("type", "default"))) not in ("default", None):
        raise _unknown(f"its positions are scaled ({kind})")
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    tokens, types = [f"[PAD{number}]" for number in range(size)], [gguf.TokenType.UNUSED] * size
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    settings = {
        "name": output.stem,
        "file_type": gguf.LlamaFileType["ALL_F32" if precision == "f32" else f"MOSTLY_{precision.upper()}"],
        "quantization_version": gguf.GGML_QUANT_VERSION,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "head_count": heads,
        "head_count_kv": config["num_key_value_heads"],
        "key_length": head,
        "value_length": head,
        "rope_dimension_count": head,
        "rope_freq_base": rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
        "layer_norm_rms_eps": config["rms_norm_eps"],
        "vocab_size": size,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": _name_split(tokenizer),
        "token_list": tokens,
        "token_types": types,
    }
    arch, quantization = gguf.MODEL_ARCH[family.upper()], gguf.GGMLQuantizationType[precision.upper()]
    output.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(output, gguf.MODEL_ARCH_NAMES[arch], use_temp_file=True)
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=size)
    special.add_to_gguf(writer, quiet=True)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, tensor in _read_tensors(folder):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise _unknown(f"GGUF has no name for {name}")
        if family == "Llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            halves = tensor.reshape(-1, 2, head // 2, *tensor.shape[1:])  # rotated in pairs instead of in halves
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        as_type = quantization if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        if precision == "q8_0" and tensor.ndim > 1 and tensor.shape[-1] % 32:
            as_type = gguf.GGMLQuantizationType.F16
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(tensor), as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    end = special.special_token_ids.get("eos")
    path = folder / "generation_config.json"
    ends = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
    stops = dict.fromkeys(
        number for number in [end, *(ends if isinstance(ends, list) else [ends])] if number is not None
    )
    lines = [f"FROM ./{output.name}", *_translate(special.chat_template, "" if end is None else tokens[end])]
    lines += [f"PARAMETER stop {json.dumps(tokens[number])}" for number in stops]
    output.with_name("Modelfile").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _unknown(reason: str) -> ValidationError:
    return ValidationError(f"this model cannot be written as GGUF: {reason}", hint="convert_hf_to_gguf.py of llama.cpp")


def _name_split(tokenizer: JsonObject) -> str:
    pre = tokenizer["pre_tokenizer"] or {"type": "none"}
    steps = pre.get("pretokenizers") or [pre]
    kinds = [step["type"] for step in steps]
    if tokenizer["model"]["type"] == "BPE":
        if kinds == ["Split", "ByteLevel"] and (name := SPLITS.get(steps[0]["pattern"].get("Regex"))):
            return name
        if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
            return "smollm"
        if kinds == ["ByteLevel"]:
            return "gpt-2"
    raise _unknown(f"its tokenizer is not one that is read here ({tokenizer['model']['type']}, {' and '.join(kinds)})")


def _read_tensors(folder: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in SafetensorsLocal(path).tensors.items():
            data = tensor.mmap_bytes()
            if tensor.dtype == "BF16":
                values = (data.view("<u2").astype("<u4") << 16).view("<f4")
            else:
                values = data.view({"F16": "<f2", "F32": "<f4"}[tensor.dtype]).astype("<f4")
            yield name, values.reshape(tensor.shape)


def _translate(template: str, eos_token: str) -> list[str]:
    """Return the lines of a Modelfile for a template whose turns do not depend on others. None for another: Ollama then
    looks for one like the copy in the GGUF file."""

    def render(*roles: str, start: bool = False) -> str:
        messages = [{"role": role, "content": f"@{role}@"} for role in roles]
        return compiled.render(messages=messages, add_generation_prompt=start, bos_token="", eos_token=eos_token)

    try:
        compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
        system, prompt = render("system"), render("system", "user")
        user, start = prompt[len(system) :], render("system", "user", start=True)[len(prompt) :]
        answer = render("system", "user", "assistant", "user")[len(prompt) :].removesuffix(user)
        turns = system + (user + answer) * 2 + user + start
        if turns != render("system", *("user", "assistant") * 2, "user", start=True) or "{{" in turns:
            return []
        opening, closing = system.split("@system@")
        default = render("user").removesuffix(user)
    except (TemplateError, ValueError, TypeError):
        return []
    branches = "{{ else ".join(
        f'if eq .Role "{role}" }}}}{text.replace(f"@{role}@", "{{ .Content }}")}'
        for role, text in (("system", system), ("user", user), ("assistant", answer))
    )
    lines = [f'TEMPLATE """{{{{ range .Messages }}}}{{{{ {branches}{{{{ end }}}}{{{{ end }}}}{start}"""']
    if opening and default.startswith(opening):
        lines.append(f'SYSTEM """{default.removeprefix(opening).removesuffix(closing)}"""')
    return lines
