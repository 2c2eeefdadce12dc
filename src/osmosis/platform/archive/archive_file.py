"""The file of a backup: a tar archive that begins with what it is and ends with the checksum of everything in it.

It appears whole or not at all. A reader takes nothing out of it before its first member has been looked at, and trusts
nothing before its last has been: a file that was cut off has no last member. Holds plain files only.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

import sqlalchemy as sa
from pydantic import Field
from pydantic import ValidationError as BadShape

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.errors import Conflict, ValidationError
from osmosis.records.base import Record, utc_now

from . import table_dump

FORMAT = 1
HEADER, MANIFEST = "header.json", "manifest.json"
CHUNK = 1024 * 1024
BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)
"""What reading a damaged archive raises."""


class BackupHeader(Record):
    """What a backup is."""

    format: int = FORMAT
    scope: Literal["everything", "database"] = "everything"
    made_at: str
    """ISO time, in UTC."""
    version: str
    """Of the osmosis that made it."""
    revision: str | None
    """Of the database."""
    database: str
    """`sqlite` or `postgresql`: where the rows come from; they fit either."""
    key_id: str
    """Which master key opens its secrets."""
    has_master_key: bool = False


class StoredRepository(Record):
    """A git repository of the platform; its commits are a bundle under its path, unless it had none."""

    id: str
    kind: str
    url: str
    path: str
    """Below the data folder."""
    default_branch: str
    head: str = ""
    """What HEAD names."""
    bundled: bool = True


class BackupManifest(Record):
    """What a backup holds."""

    files: dict[str, str]
    """Member -> SHA-256."""
    rows: int = 0
    repositories: list[StoredRepository] = Field(default_factory=list)


class ArchiveWriter:
    """An archive in the making."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.sums: dict[str, str] = {}

    def add(self, name: str, content: bytes) -> None:
        self.add_pieces(name, len(content), [content])

    def add_pieces(self, name: str, size: int, content: Iterable[bytes]) -> None:
        """A file of this size; one that meanwhile became shorter is filled up, as tar does."""
        about = tarfile.TarInfo(name)
        about.size, about.mode = size, 0o600
        source = _Hashed(content, size)
        self._tar.addfile(about, source)
        self.sums[name] = source.digest.hexdigest()

    def add_file(self, name: str, path: Path) -> None:
        """A file of ours. FileNotFoundError when it is not there."""
        with path.open("rb") as file:
            file.seek(0, io.SEEK_END)
            size = file.tell()
            file.seek(0)
            self.add_pieces(name, size, iter(lambda: file.read(CHUNK), b""))


class _Hashed(io.RawIOBase):
    """Pieces as the file that `tarfile` reads, exactly as long as was told."""

    def __init__(self, content: Iterable[bytes], size: int) -> None:
        self._content = iter(content)
        self._left = size
        self._rest = b""
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        while len(self._rest) < wanted:
            piece = next(self._content, None)
            self._rest += piece if piece is not None else bytes(wanted - len(self._rest))
        piece, self._rest = self._rest[:wanted], self._rest[wanted:]
        self._left -= len(piece)
        self.digest.update(piece)
        return piece


@contextmanager
def writing(path: Path, header: BackupHeader) -> Iterator[ArchiveWriter]:
    """A new archive, compressed when its name ends in `.gz` or `.tgz`; `finish` it before the block ends."""
    with replacing(path, mode=0o600, durable=True) as file:
        compressed = path.name.endswith((".gz", ".tgz"))
        how = {"mode": "w:gz", "compresslevel": 3} if compressed else {"mode": "w"}
        with tarfile.open(fileobj=file, **how) as tar:
            writer = ArchiveWriter(tar)
            writer.add(HEADER, header.model_dump_json(indent=1).encode())
            yield writer


def finish(writer: ArchiveWriter, manifest: BackupManifest) -> None:
    """The last member."""
    writer.add(MANIFEST, manifest.model_dump_json(indent=1).encode())


def header_of(
    engine: sa.Engine,
    key_id: str,
    *,
    scope: Literal["everything", "database"] = "everything",
    has_master_key: bool = False,
) -> BackupHeader:
    """What a backup of this database says first."""
    with table_dump.view(engine) as connection:
        revision = table_dump.revision_of(connection)
    return BackupHeader(
        scope=scope,
        made_at=utc_now().isoformat(timespec="seconds"),
        version=__version__,
        revision=revision,
        database=engine.dialect.name,
        key_id=key_id,
        has_master_key=has_master_key,
    )


def add_rows(connection: sa.Connection, archive: ArchiveWriter) -> int:
    """Every row of a database, in pieces; how many they are."""
    total = 0
    for number, (table, text) in enumerate(table_dump.pieces(connection)):
        archive.add(f"database/{number:06d}-{table}.jsonl", text)
        total += text.count(b"\n")
    return total


class ArchiveReader:
    """An archive that is read from its beginning to its end, once."""

    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._path = path
        self._sums: dict[str, str] = {}
        self.header = self._header()
        self.manifest: BackupManifest | None = None

    def _header(self) -> BackupHeader:
        first = self._tar.next()
        if first is None or first.name != HEADER:
            raise ValidationError(f"{self._path} is not a backup of osmosis")
        try:
            header = BackupHeader.model_validate_json(b"".join(self._content(first)))
        except BadShape:
            raise ValidationError(f"{self._path} is not a backup of osmosis") from None
        if header.format != FORMAT:
            raise Conflict(
                f"the backup was made by osmosis {header.version}, which this version cannot read",
                hint=f"pip install 'osmosis-ai=={header.version}', then restore it",
            )
        return header

    def members(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Name and content of each file; afterwards `manifest` is there. ValidationError for a member that is no plain
        file below the archive, and at the end for an archive that is not as it was written."""
        try:
            for member in self._tar:
                parts = PurePosixPath(member.name)
                if not member.isreg() or parts.is_absolute() or ".." in parts.parts or "\\" in member.name:
                    raise ValidationError(f"{self._path}: {member.name!r} is not a plain file of a backup")
                if member.name == MANIFEST:
                    self.manifest = BackupManifest.model_validate_json(b"".join(self._content(member)))
                elif member.name != HEADER:
                    yield member.name, self._content(member)
        except (*BROKEN, BadShape) as error:
            raise _damaged(self._path, str(error)) from error
        self._check()

    def _content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        file = self._tar.extractfile(member)
        digest = hashlib.sha256()
        while file is not None and (piece := self._read(file)):
            digest.update(piece)
            yield piece
        self._sums[member.name] = digest.hexdigest()

    def _read(self, file: IO[bytes]) -> bytes:
        try:
            return file.read(CHUNK)
        except BROKEN as error:
            raise _damaged(self._path, str(error)) from error

    def _check(self) -> None:
        if self.manifest is None:
            raise _damaged(self._path, "its end is missing")
        for name, wanted in self.manifest.files.items():
            if self._sums.get(name) != wanted:
                raise _damaged(self._path, f"{name} is not as it was written")
        if unknown := set(self._sums) - set(self.manifest.files) - {MANIFEST}:
            raise _damaged(self._path, f"{min(unknown)} does not belong to it")


def _damaged(path: Path, what: str) -> ValidationError:
    return ValidationError(f"the backup {path} is damaged: {what}", hint="nothing was changed; use another backup")


@contextmanager
def reading(path: Path) -> Iterator[ArchiveReader]:
    """An archive for reading. ValidationError for a file that is none."""
    try:
        file: BinaryIO = path.open("rb")
    except OSError as error:
        raise ValidationError(f"cannot read {path}: {error.strerror}") from error
    with ExitStack() as opened:
        opened.enter_context(file)
        try:
            tar = opened.enter_context(tarfile.open(fileobj=file, mode="r:*"))
        except BROKEN as error:
            raise ValidationError(f"{path} is not a backup of osmosis: {error}") from error
        yield ArchiveReader(tar, path)
