"""What a running server keeps."""

from osmosis.serve.server.lifetime import (
    ServerRuntime as AppState,
)

__all__ = [
    "AppState",
]
