"""The examples of a run without rollouts (`sft`, `dpo`) as token ids and masks: only the model's tokens are learned."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError as BadShape

from osmosis.errors import ModelError
from osmosis.training.protocol.messages import Example, Notice
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.errors import TrainingFailed
from osmosis.training.trainer.prompts import Prompts
from osmosis.training.trainer.service import TrainerService


@dataclass(frozen=True, slots=True)
class LabeledExample:
    token_ids: list[int]
    mask: list[int]
    """1 for each token that is learned."""


def read_examples(plan: TrainerPlan, tokenizer: Any, service: TrainerService | None) -> list[list[LabeledExample]]:
    """Return the examples that fit, each with the one it is preferred to, if any. The others are counted in a notice.
    Raise `TrainingFailed` (data)."""
    longest = plan.max_prompt_length + plan.max_response_length
    prompts = Prompts(tokenizer, plan.chat_template_kwargs)
    examples: list[list[LabeledExample]] = []
    long = unreadable = empty = 0
    for example in _read(Path(str(plan.examples_path))):
        try:
            sides = [example] if example.rejected is None else [example, example.rejected]
            labeled = [LabeledExample(*tokenize_example(side, prompts, tokenizer.eos_token_id)) for side in sides]
        except ModelError:
            unreadable += 1
            continue
        if any(len(side.token_ids) > longest for side in labeled):
            long += 1
        elif not all(any(side.mask) for side in labeled):
            empty += 1
        else:
            examples.append(labeled)
    left = f"{long} longer than {longest} tokens, {unreadable} the chat template rejects, {empty} without an answer"
    if len(examples) < plan.rows_per_step:
        raise TrainingFailed(
            f"{len(examples)} examples can be trained on, and a step takes {plan.rows_per_step} (left out: {left})",
            kind="data",
            hint="lower min_score or rollout_batch_size, raise max_response_length, or take another run",
        )
    if service is not None and long + unreadable + empty:
        service.emit(Notice(step=0, message=f"examples left out: {left}"))
    return examples


def tokenize_example(example: Example, prompts: Prompts, end: int) -> tuple[list[int], list[int]]:
    """Return token ids, and 1 for each token of the model. Exact tokens are taken as they are. Of messages, each answer
    of the assistant is what the template adds after the prompt before it, up to the end of the turn. Where the template
    rewrites what came before (it drops earlier reasoning), only what follows is learned."""
    if example.token_ids:
        return list(example.token_ids), list(example.mask)
    ids: list[int] = []
    mask: list[int] = []
    messages = example.messages
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = prompts.render(messages[:at], example.tools)
        after = prompts.render(messages[: at + 1], example.tools, prompt=False)
        if after[: len(before)] != before:
            continue
        answer = after[len(before) :]
        if end in answer:
            answer = answer[: len(answer) - answer[::-1].index(end)]
        if before[: len(ids)] != ids:
            ids, mask = [], []
        mask += [0] * (len(before) - len(ids)) + [1] * len(answer)
        ids = before + answer
    return ids, mask


def _read(path: Path) -> Iterator[Example]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield Example.model_validate_json(line)
                    except BadShape as error:
                        raise TrainingFailed(f"{path}, line {number}: {error}", kind="data") from error
    except OSError as error:
        raise TrainingFailed(f"{path} cannot be read: {error}", kind="data") from error
