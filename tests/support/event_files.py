"""Scalars of TensorBoard's event files, read without TensorBoard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag, in the order of the files."""
    from tensorboardX.proto.event_pb2 import Event  # an extra

    scalars: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for record in _records(file.read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def _records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]
