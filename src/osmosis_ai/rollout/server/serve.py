"""Serving an agent loop."""

from osmosis.serve.serving import (
    DEFAULT_HOST as DEFAULT_HOST,
)
from osmosis.serve.serving import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from osmosis.serve.serving import (
    ServeError as ServeError,
)
from osmosis.serve.serving import (
    serve_agent_loop as serve_agent_loop,
)
from osmosis.serve.serving import (
    validate_and_report as validate_and_report,
)

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "ServeError",
    "serve_agent_loop",
    "validate_and_report",
]
