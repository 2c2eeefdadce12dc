"""What has to be there before the first request: the owner, and the token that approves whoever started us."""

from __future__ import annotations

import hmac

from osmosis.base.files import write_text
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
        write_text(path, new_token("osb_") + "\n", mode=0o600)


def check_bootstrap(platform: Platform, token: str) -> None:
    """AuthRequired unless this is the text of the bootstrap file, which only its owner can read."""
    path = platform.settings.data_dir / BOOTSTRAP_FILE
    known = path.read_text().strip() if path.exists() else ""
    if not known or not hmac.compare_digest(known.encode(), token.encode()):
        raise AuthRequired("this is not the bootstrap token of this platform", code="TOKEN_INVALID")
