"""A chat model of less than a million parameters, made from nothing in about a minute: for tests and small examples.

Qwen3's architecture, one token per character (and per word of the chat format), a ChatML template with tools, and a
response template that reads its tool calls. It is taught to add two numbers with a tool, `add(a, b)`: the user says
`17+25`, the model calls the tool, reads `42` and says `42`. It is taught to be mediocre: in part of the examples it
gives up, before or after the call, so a trainer has something clear to improve.

Runs in a trainer's environment: `python tiny_model.py FOLDER [--target 0.4] [--steps 400]`."""

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tiny_task import TOOL, conversation, problem
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message

WORDS = ["user", "assistant", "system", "tool", "<tools>", "</tools>", "<tool_call>", "</tool_call>", "<think>"]
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
PARTS = ["</think>", '{"name": "', '", "arguments": {', '"a": ', '"b": ', ', "', "}}", "add"]
CONTEXT = 1024
TEMPLATE = """\
{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool.function.name }}{% if not loop.last %} {% endif %}{% endfor %}</tools><|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{% if m.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RESPONSE_TEMPLATE: JsonObject = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}


def tokenizer() -> Any:
    chars = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *WORDS, *PARTS, *chars, "<|unk|>"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    longest = sorted([*WORDS, *PARTS], key=len, reverse=True)
    pattern = "|".join(_escaped(word) for word in longest)
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{pattern}|[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    chat_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        model_max_length=CONTEXT,
    )
    chat_tokenizer.chat_template = TEMPLATE
    chat_tokenizer.response_template = RESPONSE_TEMPLATE
    return chat_tokenizer


def model(tokenizer: Any, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=True,
    )
    untrained = Qwen3ForCausalLM(config)
    untrained.generation_config.eos_token_id = tokenizer.eos_token_id
    untrained.generation_config.pad_token_id = tokenizer.pad_token_id
    return untrained


def teach(
    policy: Any,
    tokenizer: Any,
    *,
    steps: int,
    target: float,
    skill: float = 0.5,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> float:
    """Train until `target` of the sampled conversations end with the right sum, or for so many steps.

    Return the share that did; `skill` is the share of right examples, and the ceiling."""
    draw, began, step, share = random.Random(seed), time.monotonic(), 0, 0.0
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.01)
    policy.train()
    while step < steps:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50)
        ids, labels = _batch([conversation(*problem(draw), draw, skill) for _ in range(64)], tokenizer)
        loss = policy(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            share = solved(policy, tokenizer, seed=step)
            say(f"step {step}: {time.monotonic() - began:.0f} s, loss {loss.item():.3f}, solved {share:.2f}")
            if share >= target:
                break
    return share


def solved(policy: Any, tokenizer: Any, *, problems: int = 128, seed: int = 0) -> float:
    draw = random.Random(seed)
    problems_drawn = [problem(draw) for _ in range(problems)]
    talks: list[list[Message]] = [[{"role": "user", "content": f"{a}+{b}"}] for a, b in problems_drawn]
    replies = _sampled(policy, tokenizer, talks)
    again = [number for number, text in enumerate(replies) if text == _call_text(*problems_drawn[number])]
    for number in again:
        a, b = problems_drawn[number]
        talks[number] = conversation(a, b, draw, 1.0)[:3]
    answers = _sampled(policy, tokenizer, [talks[number] for number in again]) if again else []
    return sum(text == str(sum(problems_drawn[number])) for number, text in zip(again, answers, strict=True)) / problems


def make(
    folder: Path, *, steps: int = 400, target: float = 0.4, seed: int = 0, say: Callable[[str], None] = print
) -> float:
    """Make a model in `folder`, as `from_pretrained` reads it, and return the share it solves; `steps=0` does not
    train."""
    words = tokenizer()
    policy = model(words, seed=seed)
    share = teach(policy, words, steps=steps, target=target, seed=seed, say=say) if steps else 0.0
    policy.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return share


def _batch(talks: list[list[Message]], tokenizer: Any) -> tuple[Any, Any]:
    pairs = []
    for talk in talks:
        ids: list[int] = []
        labels: list[int] = []
        for number, message in enumerate(talk):
            if message["role"] == "assistant":
                before = _rendered(talk[:number], tokenizer, prompt=True)
                after = _rendered(talk[: number + 1], tokenizer, prompt=False)[:-1]  # up to the end of the turn
                labels += [-100] * (len(before) - len(ids)) + after[len(before) :]
                ids = after
        pairs.append((ids, labels))
    longest = max(len(ids) for ids, _ in pairs)
    pad = tokenizer.pad_token_id
    return (
        torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in pairs]),
        torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in pairs]),
    )


def _sampled(policy: Any, tokenizer: Any, talks: list[list[Message]]) -> list[str]:
    prompts = [_rendered(talk, tokenizer, prompt=True) for talk in talks]
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(prompt)) + prompt for prompt in prompts])
    policy.eval()
    with torch.no_grad():
        out = policy.generate(
            input_ids=ids,
            attention_mask=(ids != tokenizer.pad_token_id).long(),
            max_new_tokens=24,
            do_sample=True,
            top_k=0,
        )
    policy.train()
    return [text.strip() for text in tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)]


def _rendered(talk: list[Message], tokenizer: Any, *, prompt: bool) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(talk, tools=[TOOL], add_generation_prompt=prompt, return_dict=False)
    return ids


def _call_text(a: int, b: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def _escaped(word: str) -> str:
    return "".join(f"\\{char}" if char in '{}|()[].?*+^$"\\' and char != '"' else char for char in word)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="the most steps to teach it for; 0: none")
    parser.add_argument("--target", type=float, default=0.4, help="stop when this share of problems is solved")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    share = make(chosen.folder, steps=chosen.steps, target=chosen.target, seed=chosen.seed)
    print(f"made {chosen.folder}: solves {share:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
