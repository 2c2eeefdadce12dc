"""Registration with a platform."""

from osmosis.serve.server.registration import (
    RegistrationResult as RegistrationResult,
)

__all__ = [
    "RegistrationResult",
]
