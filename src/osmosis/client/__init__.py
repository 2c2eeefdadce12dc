"""The synchronous client of a platform (contract B), for any server that speaks it."""

from osmosis.client import lean_httpx  # isort: skip  # noqa: F401 - before anything else imports httpx
from osmosis.client.platform import PlatformClient

__all__ = ["PlatformClient"]
