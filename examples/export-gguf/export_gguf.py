# /// script
# requires-python = ">=3.10"
# dependencies = ["gguf>=0.17"]
# ///
"""Write a model folder (safetensors) as one GGUF file for llama.cpp, Ollama and LM Studio, with an Ollama Modelfile.

    osmosis model merge multiply-2
    osmosis model download multiply-2-merged
    uv run export_gguf.py models/multiply-2-merged --type q8_0

Reads Llama, Qwen2 and Qwen3 with a byte-level BPE tokenizer; another model is refused, and llama.cpp's own converter
knows it. Adapters are merged first."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
}
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {QWEN2_SPLIT: "qwen2", QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|"): "llama-bpe"}
"""How text is cut before merges, by the expression in tokenizer.json: llama.cpp has it under a name."""
TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}


def read_tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("*.safetensors")):
        raw = np.memmap(path, mode="r")
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
        for name, entry in json.loads(raw[8:start].tobytes()).items():
            if name == "__metadata__":
                continue
            low, high = (start + offset for offset in entry["data_offsets"])
            data = raw[low:high]
            if entry["dtype"] == "BF16":
                values = (data.view("<u2").astype("<u4") << 16).view("<f4")
            else:
                values = data.view({"F16": "<f2", "F32": "<f4"}[entry["dtype"]]).astype("<f4")
            yield name, values.reshape(entry["shape"])


def name_split(tokenizer: dict[str, Any]) -> str:
    if tokenizer["model"]["type"] != "BPE":
        sys.exit(f"a tokenizer of the kind {tokenizer['model']['type']} is not read here, only byte-level BPE")
    pre = tokenizer["pre_tokenizer"]
    steps = pre.get("pretokenizers") or [pre]
    kinds = [step["type"] for step in steps]
    if kinds == ["Split", "ByteLevel"] and (name := SPLITS.get(steps[0]["pattern"].get("Regex"))):
        return name
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    sys.exit(f"llama.cpp's name for the way this tokenizer cuts text is not known here: {kinds}")


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name_split(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=size).add_to_gguf(writer)


def add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    """Write what the architecture needs to know; return the size of a head."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", None):
        sys.exit(f"positions are scaled ({rope['rope_type']}), which this script does not write")
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    return int(head)


def export(folder: Path, output: Path, kind: str) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    architecture = config["architectures"][0]
    if architecture not in ARCHITECTURES:
        sys.exit(f"{architecture} is not read here, only {', '.join(ARCHITECTURES)}")
    arch, (quantization, file_type) = ARCHITECTURES[architecture], TYPES[kind]
    writer = gguf.GGUFWriter(output, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(folder.resolve().name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    head = add_settings(writer, config)
    add_tokenizer(writer, folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, tensor in read_tensors(folder):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            sys.exit(f"GGUF has no name for {name}")
        if arch is gguf.MODEL_ARCH.LLAMA and name.split(".")[-2] in ("q_proj", "k_proj"):
            halves = tensor.reshape(-1, 2, head // 2, *tensor.shape[1:])  # rotated in pairs instead of in halves
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        as_type = quantization if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        if as_type is gguf.GGMLQuantizationType.Q8_0 and tensor.shape[-1] % 32:
            as_type = gguf.GGMLQuantizationType.F16
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(tensor), as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what `osmosis model download` wrote of a merged or base model")
    parser.add_argument("-o", "--output", type=Path, help="default: FOLDER.gguf")
    parser.add_argument("--type", choices=TYPES, default="f16", help="of the weights")
    chosen = parser.parse_args()
    output = chosen.output or chosen.folder.resolve().with_suffix(".gguf")
    export(chosen.folder, output, chosen.type)
    modelfile = output.with_name("Modelfile")
    modelfile.write_text(f"FROM ./{output.name}\n")
    print(f"{output}: {output.stat().st_size / 1e6:,.1f} MB\nollama create NAME -f {modelfile}")


if __name__ == "__main__":
    main()
