"""Token sequences in micro-batches, nothing padded to the longest, no shared prefix computed twice: a rollout is a tree
of its parts. Layouts: `trees`, under a mask; `flat`, for kernels without one; `padded`, one sequence a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Row
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Layout = Literal["trees", "flat", "padded"]
SPREAD = 4
"""A micro-batch is as wide as its longest tree; one that is this many times shorter goes into the next."""


@dataclass(slots=True)
class Part:
    """An unbroken token sequence, and which of its tokens the model is trained on."""

    token_ids: NDArray[np.int32]  # array of 32-bit integers
    trained: NDArray[np.int64]
    """Where the trained tokens are in `token_ids`, never at 0: nothing comes before the first."""
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
    """Of each part, where the predecessors of its trained tokens are."""
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
    """What goes through the model at once; the arrays after `mask` are by trained token."""

    input_ids: Tensor
    positions: Tensor
    mask: Tensor | None
    sources: Tensor
    """Indices into the flattened rows: the logits there predict the trained tokens."""
    targets: Tensor
    logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor  # the number of each one's part in this micro-batch
    numbers: Tensor  # numbers of its parts in the step
    tokens: int

    def to(self, device: torch.device) -> MicroBatch:
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
