"""What all records share."""

from __future__ import annotations

import os
import subprocess
import sys

BUILDS = """
import os, threading
from pydantic_core import core_schema
from osmosis.records.base import Record

seen = []

class Inner:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        seen.append(os.environ.get("PYDANTIC_DISABLE_PLUGINS"))
        return core_schema.any_schema()

class Outer(Record):
    inner: Inner

class Said(Record):
    inner: Inner

class Later(Record):
    inner: Inner

Outer(inner=1)
assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "one"
Said(inner=1)
del os.environ["PYDANTIC_DISABLE_PLUGINS"]
over = threading.Event()
threading.Thread(target=over.wait).start()
Later(inner=1)
over.set()
print(seen)
"""


PLUGINS = """
import sys
from pydantic import BaseModel
from osmosis.records.base import Record

class Ours(Record):
    number: int

Ours(number=1)
assert "pydantic.plugin._loader" not in sys.modules
found = "importlib.metadata" in sys.modules

class Theirs(BaseModel):
    number: int

print(found, sys.modules["pydantic.plugin._loader"].PYDANTIC_ENTRY_POINT_GROUP)
"""


def test_the_models_of_users_find_their_plugins_and_ours_do_not_load_what_looks_for_them() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    done = subprocess.run([sys.executable, "-c", PLUGINS], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False pydantic\n", done.stderr


def test_records_are_built_without_plugins_until_another_thread_may_read_the_environment() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    done = subprocess.run([sys.executable, "-c", BUILDS], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['__all__', 'one', None]\n", done.stderr
