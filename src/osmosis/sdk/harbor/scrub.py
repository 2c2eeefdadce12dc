"""Takes a rollout's secrets out of the files of its trial, whatever wrote them there.

Harbor does the same for variables that look like secrets; this is for the bytes themselves, in any file and in the
forms in which commands and JSON write them. What is packed is not opened.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

log = logging.getLogger(__name__)

REDACTED = b"[REDACTED]"


def scrub(folder: Path, secrets: Iterable[str]) -> int:
    """Rewrites every file beneath `folder` that holds one of `secrets`; returns how many did."""
    forms = sorted({form for secret in secrets if len(secret) >= 4 for form in _forms(secret)}, key=len, reverse=True)
    changed = 0
    if not forms:
        return changed
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            body = path.read_bytes()
            clean = body
            for form in forms:
                clean = clean.replace(form, REDACTED)
            if clean != body:
                path.write_bytes(clean)
                changed += 1
        except OSError as exc:
            log.warning("%s cannot be searched for secrets: %s", path, exc)
    return changed


def clean_text(text: str, secrets: Iterable[str]) -> str:
    """`text` without `secrets`: a failed command is quoted in the error that reports it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED.decode())
    return text


def _forms(secret: str) -> Iterable[bytes]:
    raw = secret.encode()
    yield raw
    yield quote(secret, safe="").encode()
    yield json.dumps(secret)[1:-1].encode()
    yield base64.b64encode(raw)
