"""Token sequences in micro-batches, nothing padded to the longest, no shared prefix computed twice: a rollout is a tree
of its parts. Layouts: `trees`, under a mask; `flat`, for kernels without one; `padded`, one sequence a row.

What an update does with them is counted for model FLOPs utilization (MFU: Chowdhery et al. 2022, arXiv:2204.02311,
appendix B). A weight takes 2 FLOPs for each token forward, 2 for the gradient of its input and, if it learns, 2 for its
own: 6 N for full fine-tuning, 4 N for the frozen weights under LoRA. The head is counted for the tokens that it is
computed for. Attention takes 12 for each layer, width and pair of tokens of which the later sees the earlier. What is
computed again, and passes without a gradient, are not counted."""

from collections.abc import Iterable, Sequence as Row
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Linear

from osmosis.training.trainer.load_model import Loaded

Layout = Literal["trees", "flat", "padded"]
SPREAD = 4  # A micro-batch is as wide as its longest tree; one that is this many times shorter goes into the next


@dataclass(slots=True)
class Part:
    """An unbroken token sequence, and which of its tokens the model is trained on."""

    token_ids: NDArray[np.int32]  # array of 32-bit integers
    trained: NDArray[np.int64]
    """Places of the trained tokens in `token_ids`, never 0: nothing comes before the first."""
    logprobs: NDArray[np.float32]  # of the trained tokens, as they were sampled
    advantage: float = 1.0
    weight: float = 1.0  # of each trained token in the loss
    number: int = 0  # number of the part in the step, for a loss that compares parts


@dataclass(slots=True)
class Tree:
    token_ids: list[NDArray[np.int32]] = field(default_factory=list)
    blocks: list[tuple[int, int, list[tuple[int, int]]]] = field(default_factory=list)
    """Begin and end of each part's own tokens, and the ranges of its ancestors."""
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    sources: list[NDArray[np.int64]] = field(default_factory=list)
    """Places of the predecessors of each part's trained tokens."""
    parts: list[Part] = field(default_factory=list)
    paths: list[NDArray[np.int64]] = field(default_factory=list)
    length: int = 0

    def add(self, part: Part) -> None:
        shared, path = 0, np.empty(0, dtype=np.int64)
        for other, other_path in zip(self.parts, self.paths, strict=True):
            shorter = min(len(other.token_ids), len(part.token_ids))
            different = np.nonzero(other.token_ids[:shorter] != part.token_ids[:shorter])[0]
            common = int(different[0]) if len(different) else shorter
            if common > shared:
                shared, path = common, other_path[:common]
        own = len(part.token_ids) - shared
        self.blocks.append((self.length, self.length + own, _ranges(path)))
        path = np.concatenate([path, np.arange(self.length, self.length + own)])
        self.token_ids.append(part.token_ids[shared:])
        self.positions.append(np.arange(shared, len(part.token_ids)))
        self.sources.append(path[part.trained - 1])
        self.parts.append(part)
        self.paths.append(path)
        self.length += own


@dataclass(slots=True)
class MicroBatch:
    """The part of a batch that goes through the model at once; the arrays after `mask` are by trained token."""

    input_ids: Tensor
    positions: Tensor
    mask: Tensor | None
    sources: Tensor  # Indices into the flattened rows: the logits there predict the trained tokens
    targets: Tensor
    logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor  # the number of each one's part in this micro-batch
    numbers: Tensor  # numbers of its parts in the step
    tokens: int

    def to(self, device: torch.device) -> "MicroBatch":
        names = [name for name in self.__slots__ if name != "tokens"]
        moved = {name: value.to(device) if (value := getattr(self, name)) is not None else None for name in names}
        return MicroBatch(**moved, tokens=self.tokens)


def plant(rollouts: Iterable[Row[Part]], layout: Layout, budget: int) -> list[Tree]:
    """Return the rollouts as trees. One that is larger than `budget` tokens is divided between its parts."""
    trees = []
    for parts in rollouts:
        tree: Tree | None = None
        for part in parts:
            if tree is None or layout != "trees" or tree.length + len(part.token_ids) > max(budget, tree.length):
                trees.append(tree := Tree())
            tree.add(part)
    return trees


def pack(trees: Row[Tree], layout: Layout, budget: int) -> list[MicroBatch]:
    """Return the trees as micro-batches of at most `budget` tokens with padding; a longer tree has its own."""
    plans: list[tuple[int, list[tuple[int, list[Tree]]]]] = []
    for tree in sorted(trees, key=lambda tree: -tree.length):
        if plans and _place(tree, *plans[-1], layout, budget):
            continue
        width = max(budget, tree.length) if layout == "flat" else tree.length
        plans.append((width, [(tree.length, [tree])]))
    return [_build([row for _, row in rows], layout) for _, rows in plans]


def _place(tree: Tree, width: int, rows: list[tuple[int, list[Tree]]], layout: Layout, budget: int) -> bool:
    if layout != "flat" and tree.length * SPREAD < width:
        return False
    for at, (used, row) in enumerate(rows) if layout != "padded" else ():
        if used + tree.length <= width:
            rows[at] = (used + tree.length, [*row, tree])
            return True
    if layout == "flat" or (len(rows) + 1) * width > budget:
        return False
    rows.append((tree.length, [tree]))
    return True


def _build(rows: list[list[Tree]], layout: Layout) -> MicroBatch:
    width = max(sum(tree.length for tree in row) for row in rows)
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    mask = _empty_mask(layout, len(rows), width)
    sources, parts = [], []
    for number, row in enumerate(rows):
        begin = 0
        for tree in row:
            end = begin + tree.length
            input_ids[number, begin:end] = np.concatenate(tree.token_ids)
            positions[number, begin:end] = np.concatenate(tree.positions)
            if layout == "padded":
                mask[number, begin:end] = 1
            elif layout == "trees":
                for first, last, ancestors in tree.blocks:
                    own = mask[number, 0, begin + first : begin + last]
                    own[:, begin + first : begin + last] = torch.ones(last - first, last - first).tril().bool()
                    for low, high in ancestors:
                        own[:, begin + low : begin + high] = True
            sources += [number * width + begin + source for source in tree.sources]
            parts += tree.parts
            begin = end
    counts = [len(part.trained) for part in parts]
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(positions),
        mask=None if layout == "flat" else mask,
        sources=torch.from_numpy(np.concatenate(sources)),
        targets=torch.from_numpy(np.concatenate([part.token_ids[part.trained] for part in parts]).astype(np.int64)),
        logprobs=torch.from_numpy(np.concatenate([part.logprobs for part in parts]).astype(np.float32)),
        advantages=torch.tensor([part.advantage for part in parts]).repeat_interleave(torch.tensor(counts)),
        weights=torch.tensor([part.weight for part in parts]).repeat_interleave(torch.tensor(counts)),
        sequences=torch.arange(len(parts)).repeat_interleave(torch.tensor(counts)),
        numbers=torch.tensor([part.number for part in parts]),
        tokens=sum(tree.length for row in rows for tree in row),
    )


def _empty_mask(layout: Layout, rows: int, width: int) -> Tensor:
    if layout == "flat":
        return torch.empty(0)
    if layout == "padded":
        return torch.zeros((rows, width), dtype=torch.int64)
    # Padding sees itself: a row of the mask without a single True makes NaN of its softmax.
    return torch.eye(width, dtype=torch.bool).repeat(rows, 1, 1, 1)


def _ranges(path: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers in `path` as half-open ranges."""
    if not len(path):
        return []
    breaks = np.nonzero(np.diff(path) != 1)[0] + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(path, breaks)]


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
