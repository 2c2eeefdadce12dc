"""How likely a model finds the trained tokens of a micro-batch. Logits are the largest tensor: the head computes them
for those tokens only, a chunk after another, and again for the gradient, so that never more than a chunk's exist."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Identity, Module
from torch.utils.checkpoint import checkpoint

from osmosis.training.trainer.losses import token_logprobs
from osmosis.training.trainer.packing import MicroBatch

CHUNK = 1024


class TokenPredictor:
    def __init__(self, model: Any, temperature: float) -> None:
        self.model, self._temperature = model, temperature
        self._head: Module = model.get_output_embeddings()
        self._head.register_forward_pre_hook(self._select_sources)
        self._sources: Tensor | None = None
        self._hidden = torch.empty(0)
        self.is_chunked = True
        self.is_chunked = self._ends_with_head()

    def __call__(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-probability of each trained token at the temperature, the entropy there in nats, and whether
        the token is the likeliest."""
        rows, head = self._run(batch), self._head if self.is_chunked else Identity()
        chunks = [
            checkpoint(self._read, head, *chunk, use_reentrant=False)
            for chunk in zip(rows.split(CHUNK), batch.targets.split(CHUNK), strict=True)
        ]
        logprobs, entropy, hits = (torch.cat(values) for values in zip(*chunks, strict=True))
        return logprobs, entropy, hits

    def logits(self, batch: MicroBatch) -> Tensor:
        rows = self._run(batch)
        return self._head(rows) if self.is_chunked else rows

    def _read(self, head: Module, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(rows)
        return *token_logprobs(logits, targets, self._temperature), logits.detach().argmax(-1) == targets

    def _run(self, batch: MicroBatch) -> Tensor:
        self._sources = batch.sources
        try:
            output = self.model(
                input_ids=batch.input_ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
            )
        finally:
            self._sources = None
        hidden, self._hidden = self._hidden, torch.empty(0)
        return hidden if self.is_chunked else output.logits[0]

    def _select_sources(self, head: Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._sources is None:
            return None
        self._hidden = arguments[0].flatten(0, 1)[self._sources]
        return ((self._hidden[:1] if self.is_chunked else self._hidden)[None], *arguments[1:])

    def _ends_with_head(self) -> bool:
        """Return whether logits are the head's output as it is: some models scale or cap it."""
        self._sources = torch.zeros(1, dtype=torch.int64, device=self._head.weight.device)
        with torch.no_grad():
            output = self.model(input_ids=self._sources[None], use_cache=False)
            self._sources = None
            return bool(torch.equal(self._head(self._hidden[None]), output.logits))
