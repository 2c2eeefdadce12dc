"""The type of a JSON object that comes as it is: for reading what somebody else wrote, without a library to load.

What has a fixed shape is a record, what is only passed on or printed is an `object`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose keys somebody else decides and whose values are looked into: a config, a tool's schema."""
