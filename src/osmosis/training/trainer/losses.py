"""The losses of an update, token by token: clipped policy gradients, KL penalty, importance weights.

With the log-probability l of a token now, l_old before the step's first update and l_sampled as it was sampled:

- ratio = exp(l - l_old); `gspo` takes the geometric mean of its sequence (Zheng et al. 2025, arXiv:2507.18071);
- `grpo`, `dapo`, `dr_grpo`, `gspo`: -min(ratio A, clip(ratio, 1 - clip, 1 + clip_high) A), where `ratio_max` bounds the
  first of the two for A < 0 (dual clip: Ye et al. 2020, arXiv:1912.09729);
- `cispo`: -min(ratio, 1 + clip_high) A l, its first factor without gradient (MiniMax 2025, arXiv:2506.13585);
- `rejection`: -A l, cross entropy of the rollouts that are kept (`advantages`), and the others are left out;
- `distill`: as `dapo`, with A = l_teacher - l_old for each token, an estimate of the reverse KL divergence (Agarwal et
  al. 2023, arXiv:2306.13649; Lu and Thinking Machines Lab 2025, "On-Policy Distillation");
- the KL penalty is an estimate times the ratio, whose gradient is that of the divergence (DeepSeek-V3.2,
  arXiv:2512.02556);
- importance weight: exp(l_old - l_sampled), of the token or of the whole sequence, truncated at `importance_cap`, or 0
  beyond it (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").

`dpo` compares two parts by their sums of l - l_reference: -log sigmoid(beta (the better one's - the worse one's))
(Rafailov et al. 2023, arXiv:2305.18290). Its gradient is that of l, weighed with a slope of its own for each part.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Identity, Module
from torch.utils.checkpoint import checkpoint

from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.packing import MicroBatch

ENTROPY_ROWS = 1024


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    per_token: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def policy_loss(plan: TrainerPlan, now: Tensor, old: Tensor, advantages: Tensor, sequences: Tensor) -> PolicyLoss:
    log_ratio = now - old
    if plan.loss == "gspo":
        # Each token gets the mean over its sequence.
        counts = sum_by_sequence(torch.ones_like(log_ratio), sequences).clamp(min=1)
        log_ratio = (sum_by_sequence(log_ratio, sequences) / counts)[sequences]
    ratio = log_ratio.exp()
    low, high = 1 - plan.clip, 1 + (plan.clip if plan.clip_high is None else plan.clip_high)
    if plan.loss == "cispo":
        per_token = -ratio.clamp(max=high).detach() * advantages * now
    elif plan.loss == "rejection":
        per_token = -advantages * now
    else:
        bounded = ratio if plan.ratio_max is None else ratio.clamp(max=plan.ratio_max)
        per_token = -torch.min(bounded * advantages, ratio.clamp(low, high) * advantages)
    return PolicyLoss(per_token, ratio, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))


def preference_loss(plan: TrainerPlan, gains: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss and margin of each pair, and each part's slope; in `gains` the better one of a pair comes first."""
    margins = plan.beta * (gains[::2] - gains[1::2])
    slopes = plan.beta * torch.sigmoid(-margins) / len(margins)
    return -torch.nn.functional.logsigmoid(margins), margins, torch.stack([slopes, -slopes], 1).flatten()


def importance_weights(plan: TrainerPlan, old: Tensor, sampled: Tensor, sequences: Tensor) -> Tensor:
    """Return what corrects each token for a sampler that was not exactly this policy."""
    if plan.importance == "off":
        return torch.ones_like(old)
    level, _, treatment = plan.importance.partition("_")
    difference = old - sampled
    if level == "sequence":
        difference = sum_by_sequence(difference, sequences)[sequences]
    weights = difference.exp()
    if treatment == "mask":
        return weights.masked_fill(weights > plan.importance_cap, 0.0)
    return weights.clamp(max=plan.importance_cap)


def kl_estimate(now: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of the divergence for each token that is never negative (http://joschu.net/blog/kl-approx)."""
    difference = reference - now
    return difference.exp() - difference - 1


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target at the temperature, and the entropy there in nats."""
    logits = logits.float() / (temperature or 1.0)
    normalizer = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - normalizer
    with torch.no_grad():
        entropy = torch.cat(
            [
                total - ((rows - total[:, None]).exp() * rows).sum(-1)
                for rows, total in zip(logits.split(ENTROPY_ROWS), normalizer.split(ENTROPY_ROWS), strict=True)
            ]
        )
    return logprobs, entropy


def sum_by_sequence(values: Tensor, sequences: Tensor) -> Tensor:
    count = int(sequences.max()) + 1 if len(sequences) else 0
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, sequences, values)


CHUNK = 1024


class TokenPredictor:
    """How likely a model finds the trained tokens; the head computes logits in chunks, and again for the gradient."""

    def __init__(self, model: Any, temperature: float) -> None:
        self.model, self._temperature = model, temperature
        self._head: Module = model.get_output_embeddings()
        self._head.register_forward_pre_hook(self._select_sources)
        self._sources: Tensor | None = None
        self._hidden = torch.empty(0)
        self.is_chunked = True
        self.is_chunked = self._ends_with_head()

    def __call__(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy in nats, and whether the token is the likeliest, for each trained token."""
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
