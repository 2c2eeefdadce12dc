"""The signed addresses under which objects are sent and fetched.

A signed URL works without a login, for one purpose, until its time is over. A store that has addresses of its own gives
those, so that bytes do not pass through the platform; else they are the platform's. Paths are made of ids of ours only.
"""

from __future__ import annotations

import time
from urllib.parse import quote, urlencode

from osmosis.errors import Forbidden
from osmosis.platform import Platform

from .store import Method


def address(platform: Platform, key: str, path: str, *, method: Method) -> str:
    """Of the object `key`: the store's own, else the platform's for `path` below `/api/objects/`."""
    lifetime_s = platform.settings.url_lifetime_s
    return platform.objects.sign(key, method=method, lifetime_s=lifetime_s) or sign_url(platform, path, method=method)


def sign_url(platform: Platform, path: str, *, method: str, now: float | None = None) -> str:
    """An absolute URL for one path below `/api/objects/` and one method."""
    expires = int(now if now is not None else time.time()) + platform.settings.url_lifetime_s
    signature = platform.vault.sign(f"{method} {path} {expires}")
    query = urlencode({"expires": expires, "signature": signature})
    return f"{platform.settings.url}/api/objects/{quote(path)}?{query}"


def check_url(platform: Platform, path: str, *, method: str, expires: int, signature: str) -> None:
    """Forbidden when the signature is not ours or its time is over."""
    if not platform.vault.is_signed(f"{method} {path} {expires}", signature):
        raise Forbidden("the signature of this URL is not valid")
    if time.time() > expires:
        raise Forbidden("this URL has expired; request a new one")
