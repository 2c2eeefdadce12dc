"""Folders that look like a model to everything that reads headers and no weights: made of nothing, not loadable."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 512}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_safetensors(path: Path, shapes: Mapping[str, Sequence[int]]) -> Path:
    """A safetensors file of zeros (fp32)."""
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4
        for one in shape:
            size *= one
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(place))
    return path


def write_model(folder: Path, *, numbers: int = 1000, template: bool = True) -> Path:
    """A base model with this many numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE} if template else {}))
    write_safetensors(folder / "model.safetensors", {"embed": [numbers // 10, 10]})
    return folder


def write_adapter(folder: Path) -> Path:
    """The adapter of a checkpoint, and what only a resume needs beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    write_safetensors(folder / "adapter_model.safetensors", {"lora_A": [4, 10], "lora_B": [10, 4]})
    (folder / "optimizer.pt").write_bytes(b"state")
    return folder
