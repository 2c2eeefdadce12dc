"""Addresses."""

from osmosis.serve.server.network import (
    PublicIPDetectionError as PublicIPDetectionError,
)
from osmosis.serve.server.network import (
    detect_public_ip as detect_public_ip,
)
from osmosis.serve.server.network import (
    is_private_ip as is_private_ip,
)
from osmosis.serve.server.network import (
    is_valid_hostname_or_ip as is_valid_hostname_or_ip,
)
from osmosis.serve.server.network import (
    validate_ipv4 as validate_ipv4,
)

__all__ = [
    "PublicIPDetectionError",
    "detect_public_ip",
    "is_private_ip",
    "is_valid_hostname_or_ip",
    "validate_ipv4",
]
