"""What has to be there before the first request: the owner, and the token that approves whoever started us."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from osmosis.errors import AuthRequired

from ..context import Platform
from ..security.tokens import new_token
from . import users

BOOTSTRAP_FILE = "bootstrap.token"


def prepare(platform: Platform) -> None:
    """Make the owner and the bootstrap token where they are missing."""
    with platform.db.write() as session:
        users.ensure_owner(session, platform.settings.owner_name)
    path = platform.settings.data_dir / BOOTSTRAP_FILE
    if not path.exists():
        write_private(path, new_token("osb_") + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read; replaced as a whole."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def check_bootstrap(platform: Platform, token: str) -> None:
    """AuthRequired unless this is the text of the bootstrap file, which only its owner can read."""
    path = platform.settings.data_dir / BOOTSTRAP_FILE
    known = path.read_text().strip() if path.exists() else ""
    if not known or not hmac.compare_digest(known.encode(), token.encode()):
        raise AuthRequired("this is not the bootstrap token of this platform", code="TOKEN_INVALID")
