"""How well an update uses its GPU: model FLOPs utilization (MFU: Chowdhery et al. 2022, arXiv:2204.02311, appendix B).

A weight takes 2 FLOPs for each token forward, 2 for the gradient of its input and, if it learns, 2 for its own: 6 N for
full fine-tuning, 4 N for the frozen weights under LoRA. The head is counted for the tokens that it is computed for.
Attention takes 12 for each layer, width and pair of tokens of which the later sees the earlier. What is computed again,
and passes without a gradient, are not counted.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Linear

from osmosis.training.trainer.load_model import Loaded
from osmosis.training.trainer.packing import Tree

PEAKS = {
    "B200": 2250e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12,
    "A10": 125e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
"""FLOPs per second of dense bf16 products that add up in fp32, by NVIDIA's datasheets; the first name that fits."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def find_peak(device_name: str) -> float | None:
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


def count_flops(model: Any, trees: Iterable[Tree]) -> float | None:
    config = model.config.get_text_config()
    if any(getattr(config, name, None) for name in _EXPERTS):
        return None
    head = model.get_output_embeddings()
    body = sum(_cost(layer) for layer in model.modules() if isinstance(layer, Linear) and layer is not head)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_pair = 12 * config.num_hidden_layers * config.num_attention_heads * width
    flops = 0.0
    for tree in trees:
        pairs = sum(int((positions + 1).sum()) for positions in tree.positions)
        trained = sum(len(sources) for sources in tree.sources)
        flops += body * tree.length + _cost(head) * trained + per_pair * pairs
    return flops


def measure_utilization(flops: float | None, seconds: float, loaded: Loaded, processes: int) -> float | None:
    if flops is None or loaded.device.type != "cuda" or loaded.dtype != torch.bfloat16:
        return None
    peak = find_peak(torch.cuda.get_device_name(loaded.device))
    return flops / (seconds * peak * processes) if peak else None


def _cost(layer: Any) -> int:
    return int((6 if layer.weight.requires_grad else 4) * layer.in_features * layer.out_features)
