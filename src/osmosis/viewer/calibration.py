"""Beside the scores of a run: how far they agree with the labels that people gave there."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.errors import NotFound
from osmosis.metrics.calibration import Calibrated, calibrated, verdicts

from .source import RunSource

MOST = 400
"""Labelled rollouts that are read for a page, the first ones by row."""


def calibrations(source: RunSource) -> list[Calibrated]:
    """One for each score and version of what scored; none where nobody labelled."""
    said = source.annotations()
    if not said:
        return []
    places = list(dict.fromkeys(one.place for one in said))[:MOST]
    return list(calibrated(verdicts(said, _read(source, places), source.state().pass_threshold)))


def _read(source: RunSource, places: list[tuple[int, int, int]]) -> Iterator[JsonObject]:
    for step, row_index, attempt in places:
        try:
            yield orjson.loads(source.rollout(row_index, attempt, step))
        except NotFound:  # labelled, and then removed by a retry
            continue
