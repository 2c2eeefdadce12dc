"""Random tokens and their hashes. A token is shown once; the database keeps only its SHA-256.

Tokens carry 256 random bits, so a plain hash is enough: nothing can be guessed from it.
"""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "osm_"
JOB_PREFIX = "osj_"
"""Of the leases that jobs hold."""
TICKET_PREFIX = "ost_"
"""Of what a scheduler's job changes for a lease."""
ALPHABET = "BCDFGHJKLMNPQRSTVWXZ23456789"


def new_token(prefix: str = PREFIX) -> str:
    return prefix + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_user_code() -> str:
    """`XXXX-XXXX`, without vowels and look-alikes, for a person to compare and type."""
    word = "".join(secrets.choice(ALPHABET) for _ in range(8))
    return f"{word[:4]}-{word[4:]}"
