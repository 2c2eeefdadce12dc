"""Our losses beside TRL's on one batch: run where TRL is, prints one JSON object.

`python oracle.py MODEL_FOLDER SCRATCH_FOLDER`; for each case the distance of the losses, and of the gradients relative
to the largest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from osmosis.training.protocol.messages import Collect, SampledAnswer, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.token_sequences import Conversation
from osmosis.training.trainer.advantages import weigh_rollouts
from osmosis.training.trainer.answering import Prompts
from osmosis.training.trainer.checkpoints import CheckpointStore
from osmosis.training.trainer.engine import LocalEngine, _to_part
from osmosis.training.trainer.load_model import load, load_tokenizer
from osmosis.training.trainer.loop import Ranks
from osmosis.training.trainer.packing import pack, plant
from osmosis.training.trainer.service import TrainerService
from support.tiny_task import TOOL
from support.trainer_drive import recorded

CASES: dict[str, dict[str, Any]] = {
    "grpo": {}, "dapo": {}, "dr_grpo": {}, "gspo": {}, "cispo": {}, "rejection": {},
    "dapo, two-sided, kl": {"loss": "dapo", "ratio_max": 1.5, "kl": 0.1},
    "grpo, tokens truncated": {"loss": "grpo", "importance": "token_truncate", "importance_cap": 1.2},
    "dapo, sequences masked": {"loss": "dapo", "importance": "sequence_mask", "importance_cap": 1.5},
}  # fmt: skip


FAMILIES = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "lfm2_2_5")
"""With the end of turn that the tiny model's tokenizer has; the texts are the models' own."""


def compare(model: str, folder: Path) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    base: dict[str, Any] = {
        "run": "oracle", "model_path": model, "output_dir": str(folder), "rows": list(range(8)), "steps": 2,
        "rows_per_step": 4, "samples_per_row": 4, "max_prompt_length": 60, "max_response_length": 60, "lr": 2e-3,
        "clip": 0.1, "clip_high": 0.15, "micro_batch_tokens": 150, "temperature": 0.8,
    }  # fmt: skip
    plan = TrainerPlan(**base)
    engine = LocalEngine(plan, load(plan), Ranks(), TrainerService("x", folder / "s"), CheckpointStore(plan))
    generator = torch.Generator().manual_seed(3)
    for name, weight in engine.model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.02, generator=generator)
    engine.model.eval()
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=16, num_generations=4, use_cpu=True, bf16=False,
        report_to=[], max_completion_length=60, temperature=0.8,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=engine.model, args=arguments, processing_class=engine.loaded.tokenizer, reward_funcs=lambda **_: None,
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    return {name: _case(engine, trainer, TrainerPlan(**{**base, "loss": name, **changes}))
            for name, changes in CASES.items()}  # fmt: skip


def _case(engine: LocalEngine, trainer: Any, plan: TrainerPlan) -> list[float]:
    engine.plan = plan
    sequences = recorded(Collect(step=1, kind="train", rows=[0, 1, 2, 3], samples_per_row=4)).sequences
    weighed = weigh_rollouts([[one] for one in sequences], plan)
    longest = max(len(one.mask) for one in sequences)
    padded = {name: torch.zeros(16, longest) for name in ("old", "sampled", "own")}
    prompt = torch.tensor([list(one.token_ids[: one.prompt_length]) for one in sequences])
    completion, mask, tools = (torch.zeros(16, longest, dtype=torch.int64) for _ in range(3))
    for row, one in enumerate(sequences):
        rest = len(one.mask)
        completion[row, :rest] = torch.tensor(one.token_ids[one.prompt_length :])
        mask[row, :rest], tools[row, :rest] = 1, torch.tensor(list(one.mask))
    with torch.no_grad():
        padded["own"], _, _ = trainer._get_per_token_logps_and_entropies(
            engine.model, torch.cat([prompt, completion], 1), torch.cat([torch.ones_like(prompt), mask], 1), longest
        )
    generator = torch.Generator().manual_seed(1)
    padded["old"] = padded["own"] + 0.2 * torch.randn(16, longest, generator=generator)
    padded["sampled"] = padded["old"] + 0.2 * torch.randn(16, longest, generator=generator)
    ours = _ours(engine, weighed, sequences, padded)
    if plan.loss == "rejection":
        return _apart(ours, _cross_entropy(engine.model, plan, sequences))
    theirs = _theirs(trainer, plan, weighed, padded, prompt, completion, mask, tools)
    return _apart(ours, theirs)


def _apart(ours: tuple[float, list[Any]], theirs: tuple[float, list[Any]]) -> list[float]:
    largest = max(float(gradient.abs().max()) for gradient in theirs[1])
    apart = max(float((a - b).abs().max()) for a, b in zip(ours[1], theirs[1], strict=True))
    return [abs(ours[0] - theirs[0]), apart / largest]


def _cross_entropy(model: Any, plan: TrainerPlan, sequences: Any) -> tuple[float, list[Any]]:
    """PyTorch's own, one kept rollout after another: TRL has no such loss."""
    model.zero_grad()
    losses = []
    for first in range(0, len(sequences), 4):
        group = sequences[first : first + 4]
        mean = sum(one.reward for one in group) / 4
        for one in group:
            if one.reward > mean:
                ids = torch.tensor([list(one.token_ids)])
                labels = ids[0].clone()
                labels[: one.prompt_length] = -100
                labels[one.prompt_length :][torch.tensor(list(one.mask)) == 0] = -100
                logits = model(input_ids=ids).logits[0, :-1].float() / plan.temperature
                losses.append(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="none")[labels[1:] >= 0])
    loss = torch.cat(losses).mean()
    loss.backward()
    return float(loss), [weight.grad.clone() for weight in model.parameters() if weight.requires_grad]


def _ours(engine: LocalEngine, weighed: Any, sequences: Any, padded: dict[str, Any]) -> tuple[float, list[Any]]:
    places = {id(one): row for row, one in enumerate(sequences)}
    parts, noted = [], {}
    for rollout in weighed:
        part, row = _to_part(rollout[0]), places[id(rollout[0].sequence)]
        where = part.trained - rollout[0].sequence.prompt_length
        part.logprobs = padded["sampled"][row, where].numpy()
        noted[id(part.logprobs)] = padded["old"][row, where].numpy()
        parts.append([part])
    loss, old = 0.0, {}
    engine.optimizer.zero_grad()
    by_sampled = {tuple(part.logprobs.tolist()): noted[id(part.logprobs)] for [part] in parts}
    for number, batch in enumerate(pack(plant(parts, engine.layout, 150), engine.layout, 150)):
        count = int(batch.sequences.max()) + 1
        split = [batch.logprobs[batch.sequences == at] for at in range(count)]
        old[number] = torch.from_numpy(np.concatenate([by_sampled[tuple(one.tolist())] for one in split]))
        loss += engine._add_gradient(batch, number, old, measure=False).loss
    return loss, [weight.grad.clone() for weight in engine.weights]


def _theirs(
    trainer: Any, plan: TrainerPlan, weighed: Any, padded: dict[str, Any], prompt: Any, completion: Any, mask: Any,
    tools: Any,
) -> tuple[float, list[Any]]:  # fmt: skip
    trainer.loss_type = {"gspo": "grpo"}.get(plan.loss, plan.loss)
    trainer.importance_sampling_level = "sequence" if plan.loss == "gspo" else "token"
    trainer.epsilon_low, trainer.epsilon_high = plan.clip, float(plan.clip_high or 0)
    if plan.loss == "cispo":
        trainer.epsilon_high += 1  # theirs is the bound itself
    trainer.args.delta, trainer.beta = plan.ratio_max, plan.kl
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = plan.importance != "off"
    both = mask * tools
    inputs = {
        "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": completion,
        "completion_mask": mask, "tool_mask": tools, "old_per_token_logps": padded["old"],
        "advantages": torch.tensor([rollout[0].advantage for rollout in weighed]),
        "num_items_in_batch": both.sum(),
    }  # fmt: skip
    if plan.importance != "off":
        difference = (padded["old"] - padded["sampled"]) * both
        if plan.importance.startswith("sequence"):
            ratio = difference.sum(-1, keepdim=True).exp()
            inputs["importance_sampling_ratio"] = ratio.masked_fill(ratio > plan.importance_cap, 0.0)
        else:
            inputs["importance_sampling_ratio"] = difference.exp().clamp(max=plan.importance_cap)
    if plan.kl:
        with torch.no_grad(), trainer.model.disable_adapter():
            inputs["ref_per_token_logps"], _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, torch.cat([prompt, completion], 1), torch.cat([torch.ones_like(prompt), mask], 1),
                completion.shape[1],
            )  # fmt: skip
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss), [w.grad.clone() for w in trainer.model.parameters() if w.requires_grad]


# ----------------------------------------------------------------------------------------- chat templates of families


def forks(model: str) -> dict[str, list[float]]:
    """Of an agent of five turns that sends no reasoning back: how many sequences, and the share of tokens they keep."""
    found = {}
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        if path.stem not in FAMILIES:
            continue
        tokenizer = load_tokenizer(Path(model))
        tokenizer.chat_template = path.read_text("utf-8")
        for kind in ("tool", "user"):
            found[f"{path.stem}, {kind}"] = _talk(Prompts(tokenizer), tokenizer, kind)
    return found


def _talk(prompts: Prompts, tokenizer: Any, kind: str) -> list[float]:
    conversation, messages = Conversation(), [{"role": "user", "content": "1+2"}]
    for turn in range(5):
        request = SampleRequest(
            id=str(turn), messages=messages, tools=[TOOL], held=conversation.find_held_tokens(messages)
        )
        prompt = prompts.build(request)
        text = f"<think>\nhm {turn}\n</think>\n\nanswer {turn}<|im_end|>"
        ids = tokenizer.encode(text, add_special_tokens=False)
        answer = SampledAnswer(
            prompt_ids=prompt.token_ids, token_ids=ids, logprobs=[-1.0] * len(ids), content=f"answer {turn}",
            reasoning=f"hm {turn}", finish_reason="stop", repaired=prompt.repaired,
        )  # fmt: skip
        conversation.add(messages, answer)
        messages = [*messages, {"role": "assistant", "content": f"answer {turn}"}, {"role": kind, "content": "more"}]
    kept = sum(sum(part.mask) for part in conversation.parts)
    return [len(conversation.parts), kept / conversation.sampled_tokens, conversation.repaired_calls]


if __name__ == "__main__":
    results = {"losses": compare(sys.argv[1], Path(sys.argv[2])), "forks": forks(sys.argv[1])}
    sys.stdout.write(json.dumps(results) + "\n")
