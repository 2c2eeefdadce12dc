"""The inside of a reader: a process that parses somebody else's bytes and may be ended for it at any moment.

It is given JSON on stdin, says JSON on stdout, and ends with `REFUSED` when the bytes are at fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from osmosis.errors import OsmosisError

from .json_types import JsonObject

REFUSED = 3
"""The exit code of a reader that wrote an error instead of its answer."""


def reader_main(read: Callable[[JsonObject], object]) -> int:
    """Run `read` on what stdin holds; the exit code."""
    given = json.load(sys.stdin)
    try:
        answer, code = read(given), 0
    except OsmosisError as error:
        answer, code = {**error.to_wire(), "status": error.http_status}, REFUSED
    except RecursionError:
        answer, code = {"message": "it is nested too deeply to be read", "status": 400}, REFUSED
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    return code
