"""`python -m osmosis` is the `osmosis` command."""

import sys

from osmosis.cli import main

sys.exit(main())
