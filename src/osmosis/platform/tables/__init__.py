"""Used as `tables.Run`, so that a row is never mistaken for the record of the same name."""

from osmosis.platform.tables.base import *  # noqa: F403 - all of the tables
from osmosis.platform.tables.data import *  # noqa: F403
from osmosis.platform.tables.people import *  # noqa: F403
from osmosis.platform.tables.runs import *  # noqa: F403
