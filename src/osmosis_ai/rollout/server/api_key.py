"""Keys of rollout servers."""

from osmosis.serve.server.auth import (
    API_KEY_PREFIX as API_KEY_PREFIX,
)
from osmosis.serve.server.auth import (
    generate_api_key as generate_api_key,
)
from osmosis.serve.server.auth import (
    validate_api_key as validate_api_key,
)

__all__ = [
    "API_KEY_PREFIX",
    "generate_api_key",
    "validate_api_key",
]
