"""Names and numbers of the distribution."""

from osmosis._version import (
    __version__ as PACKAGE_VERSION,
)

__all__ = [
    "PACKAGE_VERSION",
]

package_name = "osmosis-ai"
__all__ += ["package_name"]
