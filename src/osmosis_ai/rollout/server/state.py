"""What a running server keeps."""

from osmosis.serve.server.runtime import (
    ServerRuntime as AppState,
)

__all__ = [
    "AppState",
]
