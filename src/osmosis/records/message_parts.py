"""What a chat message holds beside its text: reasoning, images and sources, by whatever names providers give them.

For whoever shows a conversation. Nothing here renders, and nothing is fetched.
"""

from __future__ import annotations

import json

from osmosis.base.light_dataclass import dataclass

from .rollout import Message

SHOWN_IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")
"""Images that are in the message itself can be shown; others are only named: a page loads nothing from elsewhere."""


@dataclass(frozen=True, slots=True)
class CitedSource:
    """An annotation of an answer: a cited page or file."""

    title: str
    url: str
    """Empty when it is no http address."""


def reasoning_of(message: Message) -> str:
    """What the model thought before it answered."""
    found = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking_blocks") or ""
    if isinstance(found, list):
        texts = [part.get("thinking") or part.get("text") for part in found if isinstance(part, dict)]
        found = "\n".join(text for text in texts if isinstance(text, str)) or found
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=2, default=str)


def image_url(part: object) -> str:
    """The address of an image part; empty for any other part."""
    found = part.get("image_url") if isinstance(part, dict) else None
    found = found.get("url") if isinstance(found, dict) else found
    return found if isinstance(found, str) else ""


def images_of(message: Message) -> list[str]:
    """The addresses of a message's images, in its content and beside it."""
    content, beside = message.get("content"), message.get("images")
    parts = [*(content if isinstance(content, list) else ()), *(beside if isinstance(beside, list) else ())]
    return [url for part in parts if (url := image_url(part))]


def sources_of(message: Message) -> list[CitedSource]:
    """What an answer says it rests on (`annotations`)."""
    found = message.get("annotations")
    return [_source(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _source(annotation: Message) -> CitedSource:
    kind = str(annotation.get("type") or "annotation")
    inner = annotation.get(kind)
    facts = inner if isinstance(inner, dict) else annotation
    url = str(facts.get("url") or "")
    title = facts.get("title") or facts.get("filename") or facts.get("file_id") or url or kind
    return CitedSource(str(title), url if url.startswith(("https://", "http://")) else "")
