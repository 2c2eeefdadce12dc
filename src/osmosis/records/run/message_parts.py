"""Parts of a chat message beside its text, under the names of several providers: reasoning, images, sources."""

import json
from dataclasses import dataclass

from osmosis.records.run.rollout import Message

SHOWN_IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")
"""Inline images that are shown; others are only named, because a page loads nothing from elsewhere."""


@dataclass(frozen=True, slots=True)
class CitedSource:
    title: str
    url: str
    """Empty for anything but an http address."""


def get_reasoning(message: Message) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking_blocks") or ""
    if isinstance(reasoning, list):
        texts = [part.get("thinking") or part.get("text") for part in reasoning if isinstance(part, dict)]
        reasoning = "\n".join(text for text in texts if isinstance(text, str)) or reasoning
    return reasoning if isinstance(reasoning, str) else json.dumps(reasoning, ensure_ascii=False, indent=2, default=str)


def image_url(part: object) -> str:
    image = part.get("image_url") if isinstance(part, dict) else None
    image = image.get("url") if isinstance(image, dict) else image
    return image if isinstance(image, str) else ""


def list_images(message: Message) -> list[str]:
    content, images = message.get("content"), message.get("images")
    parts = [*(content if isinstance(content, list) else ()), *(images if isinstance(images, list) else ())]
    return [url for part in parts if (url := image_url(part))]


def list_sources(message: Message) -> list[CitedSource]:
    annotations = message.get("annotations")
    entries = annotations if isinstance(annotations, list) else ()
    return [_source(annotation) for annotation in entries if isinstance(annotation, dict)]


def _source(annotation: Message) -> CitedSource:
    kind = str(annotation.get("type") or "annotation")
    inner = annotation.get(kind)
    facts = inner if isinstance(inner, dict) else annotation
    url = str(facts.get("url") or "")
    title = facts.get("title") or facts.get("filename") or facts.get("file_id") or url or kind
    return CitedSource(str(title), url if url.startswith(("https://", "http://")) else "")
