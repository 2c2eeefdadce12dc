"""`osmosis serve`, `validate`, `test`."""

from osmosis.cli.agent_test.command import (
    test as test,
)
from osmosis.cli.serve import (
    serve as serve,
)
from osmosis.cli.validate import (
    validate as validate,
)

__all__ = [
    "serve",
    "test",
    "validate",
]
