"""Registration with a platform."""

from osmosis.serve.registration import (
    RegistrationResult as RegistrationResult,
)

__all__ = [
    "RegistrationResult",
]
