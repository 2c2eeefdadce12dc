from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from typer import Option

from osmosis.cli.core.context import AppContext, scope_of
from osmosis.cli.core.results import Column, ListResult
from osmosis.errors import UsageError

if TYPE_CHECKING:
    from osmosis.client import PlatformClient
    from osmosis.records.api.body import Body, Page

Limit = Annotated[int | None, Option(min=1, max=50, help="Show at most N [default: 50]")]
Offset = Annotated[int, Option(min=0, help="Skip the first N", hidden=True)]
Everything = Annotated[bool, Option("--all", help="Show all of them")]
Lines = Annotated[int, Option(min=1, max=200, help="Show the last N lines")]
Cursor = Annotated[str | None, Option(help="Show lines before a page's next_cursor", hidden=True)]
PAGE = 50


class Pages(Protocol):
    def page(self, *, limit: int = ..., offset: int = ...) -> "Page[Body]": ...
    def all(self) -> "Sequence[Body]": ...


@dataclass(frozen=True)
class Paging:
    """The requested part of a list; raises UsageError for `--limit` with `--all`."""

    limit: int | None = None
    everything: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        if self.everything and self.limit is not None:
            raise UsageError("--limit and --all cannot be used together")

    @property
    def size(self) -> int:
        return self.limit or PAGE


def list_result(
    ctx: AppContext, of: "Callable[[PlatformClient], Pages]", columns: Sequence[Column], paging: Paging, *, empty: str
) -> ListResult:
    with ctx.client() as client:
        scope = scope_of(client)
        if paging.everything:
            return ListResult([row.to_dict() for row in of(client).all()], columns, empty=empty, extra=scope)
        page = of(client).page(limit=paging.size, offset=paging.offset)
    return ListResult(
        [row.to_dict() for row in page.rows],
        columns,
        empty=empty,
        total_count=page.total_count,
        has_more=page.has_more,
        next_offset=page.next_offset,
        extra=scope,
    )
