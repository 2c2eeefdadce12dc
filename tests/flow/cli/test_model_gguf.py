"""`osmosis model download --format gguf`: what readers of GGUF find in the file is what was in the model's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import uv
from gguf import GGUFReader

from osmosis.cli.gguf_file import write_gguf
from osmosis.errors import ValidationError
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.platform import tables
from support.command_line import CommandRun
from support.model_files import write_adapter, write_safetensors
from support.platform_app import RunningPlatform
from support.platform_data import add_run
from support.trainer_environment import trainer_environ

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
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "vocab_size": 8, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
}  # fmt: skip
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<|end|>", "special": True}, {"id": 4, "content": "<|x|>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel"},
}
TURNS = (
    "{%- if messages[0].role != 'system' %}{{- '<|system|>\\nBe kind.<|end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
MODELFILE = (
    'FROM ./tiny.gguf\nTEMPLATE """{{ range .Messages }}{{ if eq .Role "system" }}<|system|>\n{{ .Content }}<|end|>\n'
    '{{ else if eq .Role "user" }}<|user|>\n{{ .Content }}<|end|>\n{{ else if eq .Role "assistant" }}<|assistant|>\n'
    '{{ .Content }}<|end|>\n{{ end }}{{ end }}<|assistant|>\n"""\nSYSTEM """Be kind."""\n'
    'PARAMETER stop "<|end|>"\nPARAMETER stop "<|x|>"\n'
)


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
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TURNS, "eos_token": "<|end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    return folder


def download(platform: RunningPlatform, folder: Path, **environ: str) -> CommandRun:
    assert platform.run("model", "upload", "tiny", cwd=folder).code == 0
    return platform.run("model", "download", "tiny", "--format", "gguf", "--dtype", "f32", cwd=folder, **environ)


def test_a_model_is_downloaded_as_gguf(platform: RunningPlatform, model: Path, tmp_path: Path) -> None:
    done = download(platform, tmp_path)
    assert done.code == 0, done.err
    file = tmp_path / "models" / "tiny" / "tiny.gguf"
    assert done.json["resource"]["path"] == str(file)
    assert (file.parent / "Modelfile").read_text() == MODELFILE
    reader = GGUFReader(file)
    keys = ("general.architecture", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.chat_template")
    architecture, split, tokens, template = (reader.get_field(key).contents() for key in keys)
    assert (architecture, split, template) == ("llama", "gpt-2", TURNS)
    assert tokens[:6] == ["a", "b", "ab", "<|end|>", "<|x|>", "[PAD5]"]
    assert reader.get_field("llama.rope.freq_base").contents() == 5000.0
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    assert stored["token_embd.weight"].tolist() == np.arange(64.0).reshape(8, 8).tolist()
    names = list(SHAPES)
    first = sum(int(np.prod(SHAPES[name])) for name in names[: names.index(f"{LAYER}self_attn.q_proj.weight")])
    rows = np.arange(first, first + 64.0).reshape(8, 8)
    assert stored["blk.0.attn_q.weight"].tolist() == rows[[0, 2, 1, 3, 4, 6, 5, 7]].tolist(), "rotated in pairs"


def test_an_adapter_that_was_merged_is_downloaded_as_gguf(
    platform: RunningPlatform, model: Path, tmp_path: Path
) -> None:
    """A merge that is there already is not made again."""
    run = add_run(platform.parts, platform.workspace_id, kind="training", name="multiply-1")
    folder = write_adapter(platform.parts.settings.models_dir / "runs" / run / "step-000002")
    with platform.parts.db.write() as session:
        session.add(
            tables.Checkpoint(
                run_id=run, name="multiply-1-step-2", step=2, status="ready", base_model="tiny",
                path=platform.parts.settings.stored(folder),
            )
        )  # fmt: skip
    assert platform.run("model", "upload", "tiny", "--name", "multiply-1-step-2-merged", cwd=tmp_path).code == 0
    done = platform.run("model", "download", "multiply-1", "--format", "gguf", "-o", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"multiply-1-step-2.gguf", "Modelfile"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "it is a MambaForCausalLM"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "its positions are scaled (llama3)"),
    ],
)
def test_another_kind_of_model_is_refused(
    platform: RunningPlatform, model: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert message in download(platform, tmp_path).error["message"]


def test_a_template_whose_turns_depend_on_others_is_left_to_ollama(model: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|end|>"}))
    write_gguf(model, tmp_path / "tiny.gguf", "q8_0")
    assert (tmp_path / "Modelfile").read_text().splitlines()[1] == 'PARAMETER stop "<|end|>"'


def test_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    words = {**TOKENIZER, "model": {"type": "WordLevel", "vocab": {"a": 0}}}
    (model / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ValidationError, match=r"\(WordLevel, ByteLevel\)"):
        write_gguf(model, tmp_path / "tiny.gguf", "f16")


def test_without_the_library_the_command_says_what_to_install(model: Path, tmp_path: Path) -> None:
    (tmp_path / "gguf.py").write_text("raise ImportError('there is none')")
    command = [sys.executable, "-m", "osmosis", "model", "download", "tiny", "--format", "gguf"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--format gguf needs a library" in done.stderr
    assert "gguf" in done.stderr.splitlines()[1]


MAKE = r"""
import json, sys, torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

family, folder = sys.argv[1], Path(sys.argv[2])
torch.manual_seed(3)
torch.set_num_threads(1)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<|im_start|>", "<|im_end|>"]
trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=special)  # of the letters below: each token is a text
tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog, user and assistant and system\n"], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
fast.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
config = {"Llama": LlamaConfig, "Qwen2": Qwen2Config, "Qwen3": Qwen3Config}[family](
    vocab_size=len(fast), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=1,
    bos_token_id=None, initializer_range=0.3,
)
model = AutoModelForCausalLM.from_config(config).eval()
model.save_pretrained(folder)
fast.save_pretrained(folder)
question = [{"role": "user", "content": "the lazy fox"}]
text = fast.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
ids = fast(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
written, logprobs, asked = [], [], ids.shape[1]
with torch.no_grad():
    for _ in range(12):
        last = torch.log_softmax(model(input_ids=ids).logits[0, -1].float(), -1)
        token = int(last.argmax())
        if token == 1:
            break
        written.append(token)
        logprobs.append(float(last[token]))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
print(json.dumps({"asked": asked, "ids": written, "logprobs": logprobs}))
"""
READ = """
import json, sys
from xllamacpp import CommonParams, Server, ggml_type, llama_flash_attn_type
params = CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 256, 1
params.cache_type_k = params.cache_type_v = ggml_type.GGML_TYPE_F32
params.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads, params.warmup, params.verbosity = 1, False, -1
question = [{"role": "user", "content": "the lazy fox"}]
body = {"messages": question, "temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 1}
answer = Server(params).handle_chat_completions(body)
tokens, asked = answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]
ids, logprobs = ([one[key] for one in tokens] for key in ("id", "logprob"))
print(json.dumps({"asked": asked, "ids": ids, "logprobs": logprobs}))
"""


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_llama_cpp_answers_as_transformers_does(trainer: TrainerEnvironment, tmp_path: Path, family: str) -> None:
    make = [str(trainer.python), "-c", MAKE, family, str(tmp_path / "model")]
    made = subprocess.run(make, env=trainer_environ(trainer), capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-4000:]
    expected = json.loads(made.stdout.splitlines()[-1])
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "f32")
    assert "<|im_start|>assistant\n" in (tmp_path / "Modelfile").read_text()
    python = [uv.find_uv_bin(), "run", "--no-project", "--python", sys.executable, "--with", "xllamacpp", "python"]
    read = subprocess.run([*python, "-c", READ, str(tmp_path / "model.gguf")], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr[-4000:]
    answer = json.loads(read.stdout.splitlines()[-1])
    assert (answer["asked"], answer["ids"]) == (expected["asked"], expected["ids"])
    assert answer["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-3)
