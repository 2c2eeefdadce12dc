"""`examples/export-gguf`: what a reader of GGUF finds in the file is what was in the model's folder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import uv

from support import TESTS
from support.model_files import write_safetensors

pytestmark = pytest.mark.network
SCRIPT = TESTS.parent / "examples" / "export-gguf" / "export_gguf.py"
LAYER, EMBED = "model.layers.0.", "model.embed_tokens.weight"
SHAPES = {
    EMBED: (8, 8),
    "model.norm.weight": (8,),
    **{f"{LAYER}{name}_layernorm.weight": (8,) for name in ("input", "post_attention")},
    **{f"{LAYER}self_attn.{name}_proj.weight": (8, 8) for name in "qo"},
    **{f"{LAYER}self_attn.{name}_proj.weight": (4, 8) for name in "kv"},
    **{f"{LAYER}mlp.{name}_proj.weight": (16, 8) for name in ("gate", "up")},
    f"{LAYER}mlp.down_proj.weight": (8, 16),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "vocab_size": 8, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
}  # fmt: skip
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<|end|>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel"},
}
READ = """
import gguf, json, sys
reader = gguf.GGUFReader(sys.argv[1])
keys = ("general.architecture", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "llama.rope.freq_base")
fields = {key: reader.get_field(key).contents() for key in keys}
print(json.dumps({**fields, **{tensor.name: tensor.data.tolist() for tensor in reader.tensors}}))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [uv.find_uv_bin(), "run", "--no-project", "--python", sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    path = write_safetensors(folder / "model.safetensors", SHAPES)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:start] + np.arange((len(content) - start) // 4, dtype="<f4").tobytes())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def test_a_model_becomes_a_gguf_file(model: Path) -> None:
    done = run(str(SCRIPT), str(model), "--type", "f32")
    assert done.returncode == 0, done.stderr
    assert (model.parent / "Modelfile").read_text() == "FROM ./tiny.gguf\n"
    read = run("--with", "gguf", "python", "-c", READ, str(model.parent / "tiny.gguf"))
    assert read.returncode == 0, read.stderr
    stored = json.loads(read.stdout)
    assert (stored["general.architecture"], stored["tokenizer.ggml.pre"]) == ("llama", "gpt-2")
    assert stored["tokenizer.ggml.tokens"][:5] == ["a", "b", "ab", "<|end|>", "[PAD4]"]
    assert stored["llama.rope.freq_base"] == 5000.0
    assert stored["token_embd.weight"] == np.arange(64.0).reshape(8, 8).tolist()
    before = [
        name for name in SHAPES if list(SHAPES).index(name) < list(SHAPES).index(f"{LAYER}self_attn.q_proj.weight")
    ]
    first = sum(int(np.prod(SHAPES[name])) for name in before)
    rows = np.arange(first, first + 64.0).reshape(8, 8)
    assert stored["blk.0.attn_q.weight"] == rows[[0, 2, 1, 3, 4, 6, 5, 7]].tolist(), "rotated in pairs"


def test_another_architecture_is_refused(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}))
    done = run(str(SCRIPT), str(model))
    assert done.returncode == 1
    assert "MambaForCausalLM is not read here" in done.stderr
