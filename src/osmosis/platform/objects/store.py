"""What an object store does: put, open, delete, sign, list, and fetch a working copy.

An object is written once and never changed. Its key is the path below the data folder at which a copy of it lies on a
machine that works with it: with a store in the data folder, that copy is the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Method = Literal["GET", "PUT"]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing."""

    key: str
    size: int
    """Bytes."""
    changed: float
    """Seconds since the epoch."""
    etag: str = ""
    """Without quotes; empty where the store keeps none."""


@dataclass(frozen=True, slots=True)
class Content:
    """An open object; `pieces` is read once."""

    size: int
    """Bytes of the whole object."""
    pieces: Iterator[bytes]
    """From the offset on that was asked for."""


class Objects(Protocol):
    """A store. What cannot be reached, or refuses us, is a NetworkError that says so."""

    @property
    def elsewhere(self) -> bool:
        """Whether objects are apart from the data folder, whose files are copies then."""

    def put(self, key: str, source: Path) -> None:
        """The content of a file becomes the object. With a store in the data folder the file is moved to its place."""

    def open(self, key: str, offset: int = 0) -> Content:
        """NotFound when there is no such object."""

    def fetch(self, key: str) -> Path:
        """A copy on this machine, whole and checked; made when there is none. NotFound when there is no object."""

    def delete(self, key: str) -> None:
        """One object, or with a key that ends in `/` all below it, copies included; what is not there is deleted."""

    def list(self, key: str) -> Iterator[StoredObject]:
        """All objects below a key that ends in `/`, by key."""

    def sign(self, key: str, *, method: Method, lifetime_s: int) -> str:
        """An address under which whoever has it may send or fetch the object without the platform; empty where there is
        none, and the platform's own is given instead."""
