"""The names existing projects know, from generations 0.2 and 0.3, under the modules they import them from.

Everything lives in `osmosis` and nothing is implemented here: `names.json` says which name is where."""

from osmosis_ai._finder import install

install(__name__)
del install
