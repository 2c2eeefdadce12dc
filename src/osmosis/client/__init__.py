"""The client of a platform: HTTP calls by noun, its address, and the login there.

Speaks contract B, so it works against any server that does. Synchronous; imports no command and no engine.
"""

from __future__ import annotations

from .platform import PlatformClient

__all__ = ["PlatformClient"]
