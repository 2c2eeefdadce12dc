"""Used as `tables.Run`, so that a row is never mistaken for the record of the same name."""

from .base import *  # noqa: F403 - all of the tables
from .data import *  # noqa: F403
from .people import *  # noqa: F403
from .runs import *  # noqa: F403
