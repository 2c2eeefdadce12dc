"""Serving an agent loop."""

from osmosis.serve.server.foreground import (
    DEFAULT_HOST as DEFAULT_HOST,
)
from osmosis.serve.server.foreground import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from osmosis.serve.server.foreground import (
    ServeError as ServeError,
)
from osmosis.serve.server.foreground import (
    serve_agent_loop as serve_agent_loop,
)
from osmosis.serve.server.foreground import (
    validate_and_report as validate_and_report,
)

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "ServeError",
    "serve_agent_loop",
    "validate_and_report",
]
