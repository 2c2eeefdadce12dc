"""What a running server keeps."""

from osmosis.serve.runtime import (
    ServerRuntime as AppState,
)

__all__ = [
    "AppState",
]
