"""The synchronous client of a platform (contract B), for any server that speaks it."""

from . import lean_httpx  # isort: skip  # noqa: F401 - before anything else imports httpx
from .platform import PlatformClient

__all__ = ["PlatformClient"]
