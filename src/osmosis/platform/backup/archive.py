"""The file of a backup: a tar archive with a header as first member and checksums of everything as last. The rows of
the database are lines of JSON, from one view, for SQLite and PostgreSQL alike."""

import base64
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

import sqlalchemy as sa
from pydantic import Field, ValidationError as BadShape

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.errors import Conflict, ValidationError
from osmosis.platform.db import read_revision
from osmosis.platform.migrations import advance_sequences
from osmosis.records.base import Record, utc_now

FORMAT = 1
HEADER, MANIFEST = "header.json", "manifest.json"
CHUNK = 1024 * 1024
MEMBER = re.compile(
    r"master\.key|database/\d+-\w+\.jsonl|bundles/[\w-]+\.bundle|data/(objects|models)/.+|"
    r"data/runs/[^/]+/([^/]+/)?(job\.log|metrics\.jsonl|artifacts/.+)"
)
"""Files of a backup between header and manifest: no git folder, checkout or environment, which would be run."""
BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)


class BackupHeader(Record):
    format: int = FORMAT
    scope: Literal["everything", "database"] = "everything"
    made_at: str
    version: str
    revision: str | None
    database: str
    key_id: str
    has_master_key: bool = False


class StoredRepository(Record):
    id: str = Field(pattern="^[A-Za-z0-9_-]+$")
    kind: str
    url: str
    path: str
    default_branch: str
    head: str = ""
    bundled: bool = True


class BackupManifest(Record):
    files: dict[str, str]
    rows: int = 0
    repositories: list[StoredRepository] = Field(default_factory=list)


class ArchiveWriter:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.sums: dict[str, str] = {}

    def add(self, name: str, content: bytes) -> None:
        self.add_pieces(name, len(content), [content])

    def add_pieces(self, name: str, size: int, content: Iterable[bytes]) -> None:
        """Add a file of this size; one that became shorter meanwhile is filled up with zeros, as tar does."""
        about = tarfile.TarInfo(name)
        about.size, about.mode = size, 0o600
        source = _Hashed(content, size)
        self._tar.addfile(about, source)
        self.sums[name] = source.digest.hexdigest()

    def add_file(self, name: str, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(0, io.SEEK_END)
            size = file.tell()
            file.seek(0)
            self.add_pieces(name, size, iter(lambda: file.read(CHUNK), b""))


class _Hashed(io.RawIOBase):
    def __init__(self, content: Iterable[bytes], size: int) -> None:
        self._content = iter(content)
        self._left = size
        self._rest = b""
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        length = self._left if size < 0 else min(size, self._left)
        while len(self._rest) < length:
            piece = next(self._content, None)
            self._rest += piece if piece is not None else bytes(length - len(self._rest))
        piece, self._rest = self._rest[:length], self._rest[length:]
        self._left -= len(piece)
        self.digest.update(piece)
        return piece


@contextmanager
def open_writer(path: Path, header: BackupHeader) -> Iterator[ArchiveWriter]:
    """Open a new archive, compressed when its name ends in `.gz` or `.tgz`; `finish` it before the block ends."""
    with replacing(path, mode=0o600, durable=True) as file:
        compressed = path.name.endswith((".gz", ".tgz"))
        options = {"mode": "w:gz", "compresslevel": 3} if compressed else {"mode": "w"}
        with tarfile.open(fileobj=file, **options) as tar:
            writer = ArchiveWriter(tar)
            writer.add(HEADER, header.model_dump_json(indent=1).encode())
            yield writer


def finish(writer: ArchiveWriter, manifest: BackupManifest) -> None:
    writer.add(MANIFEST, manifest.model_dump_json(indent=1).encode())


def build_header(
    engine: sa.Engine,
    key_id: str,
    *,
    scope: Literal["everything", "database"] = "everything",
    has_master_key: bool = False,
) -> BackupHeader:
    with open_snapshot(engine) as connection:
        revision = read_revision(connection)
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
    total = 0
    for number, (table, text) in enumerate(dump_pieces(connection)):
        archive.add(f"database/{number:06d}-{table}.jsonl", text)
        total += text.count(b"\n")
    return total


class ArchiveReader:
    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._path = path
        self._sums: dict[str, str] = {}
        first = self._tar.next()
        if first is None or first.name != HEADER:
            raise ValidationError(f"{self._path} is not a backup of osmosis")
        try:
            header = BackupHeader.model_validate_json(b"".join(self._content(first)))
        except BadShape:
            raise ValidationError(f"{self._path} is not a backup of osmosis") from None
        if header.format != FORMAT:
            message = f"the backup was made by osmosis {header.version}, which this version cannot read"
            raise Conflict(message, hint=f"install osmosis {header.version}, then restore it")
        self.header = header
        self.manifest: BackupManifest | None = None

    def members(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        try:
            for member in self._tar:
                parts = PurePosixPath(member.name)
                if not member.isreg() or parts.is_absolute() or ".." in parts.parts or "\\" in member.name:
                    raise ValidationError(f"{self._path}: {member.name!r} is not a plain file of a backup")
                if member.name == MANIFEST:
                    self.manifest = BackupManifest.model_validate_json(b"".join(self._content(member)))
                elif MEMBER.fullmatch(member.name):
                    yield member.name, self._content(member)
                elif member.name != HEADER:
                    raise ValidationError(f"{self._path}: no backup has a file {member.name!r}")
        except (*BROKEN, BadShape) as error:
            raise _damaged(self._path, str(error)) from error
        if self.manifest is None:
            raise _damaged(self._path, "its end is missing")
        for name, digest in self.manifest.files.items():
            if self._sums.get(name) != digest:
                raise _damaged(self._path, f"{name} is not as it was written")
        if unknown := set(self._sums) - set(self.manifest.files) - {MANIFEST}:
            raise _damaged(self._path, f"{min(unknown)} does not belong to it")

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


def _damaged(path: Path, reason: str) -> ValidationError:
    return ValidationError(f"the backup {path} is damaged: {reason}", hint="nothing was changed; use another backup")


@contextmanager
def open_reader(path: Path) -> Iterator[ArchiveReader]:
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


VERSIONS = "alembic_version"
ROWS_AT_ONCE = 500
PIECE_BYTES = 8 * 1024 * 1024  # Approximate size of a piece, in bytes; a longer row is a piece of its own

Change = Callable[[JsonObject], JsonObject]


@contextmanager
def open_snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    options: JsonObject = {"reading": True}
    if engine.dialect.name != "sqlite":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        yield connection


def reflect_tables(connection: sa.Connection) -> sa.MetaData:
    tables = sa.MetaData()

    @sa.event.listens_for(tables, "column_reflect")
    def _as_stored(_inspector: object, _table: object, column: JsonObject) -> None:
        if isinstance(column["type"], sa.JSON):
            column["type"] = sa.JSON(none_as_null=True)

    tables.reflect(connection)
    return tables


def dump_pieces(connection: sa.Connection) -> Iterator[tuple[str, bytes]]:
    streaming = connection.execution_options(stream_results=True)
    for table in reflect_tables(connection).sorted_tables:
        if table.name == VERSIONS:
            continue
        lines: list[bytes] = []
        size = 0
        for row in streaming.execute(sa.select(table)).yield_per(ROWS_AT_ONCE).mappings():
            cells = {name: _plain(value) for name, value in row.items()}
            lines.append(json.dumps(cells, separators=(",", ":")).encode() + b"\n")
            size += len(lines[-1])
            if size >= PIECE_BYTES:
                yield table.name, b"".join(lines)
                lines, size = [], 0
        if lines:
            yield table.name, b"".join(lines)


def load_pieces(connection: sa.Connection, dumped: Iterable[tuple[str, bytes]], changes: Mapping[str, Change]) -> int:
    tables = reflect_tables(connection)
    total = 0
    for name, text in dumped:
        table = tables.tables[name]
        change = changes.get(name)
        rows = [_row(table, line, aware=connection.dialect.name != "sqlite") for line in text.splitlines()]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            connection.execute(table.insert(), [change(row) for row in some] if change else some)
        total += len(rows)
    advance_sequences(connection, tables.sorted_tables)
    return total


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return moment.astimezone(timezone.utc).isoformat()
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    return value


def _row(table: sa.Table, line: bytes, *, aware: bool) -> JsonObject:
    row: JsonObject = json.loads(line)
    for name, value in row.items():
        kind = table.columns[name].type
        if value is not None and isinstance(kind, sa.DateTime):
            moment = datetime.fromisoformat(value)
            row[name] = moment if aware else moment.replace(tzinfo=None)
        elif value is not None and isinstance(kind, sa.LargeBinary):
            row[name] = base64.b64decode(value)
    return row
