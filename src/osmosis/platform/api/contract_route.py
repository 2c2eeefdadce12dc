"""How a route of the API says its bodies: what the annotations of its function declare, and only the keys that are set.

The records build their schemas late, because a command needs few of them. A route's have to be there when the route
is declared, or FastAPI's own checks of them warn at the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, get_args, get_type_hints

from fastapi import Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute

from osmosis.records.base import Record

from .strict_json import LenientResponse, StrictRequest


class ContractRoute(APIRoute):
    """A route whose answer leaves as its service built it: a key that was not set stays away.

    Its body is read strictly: JSON that cannot be stored is the caller's error.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for hint in (*get_type_hints(endpoint).values(), options.get("response_model")):
            for record in _records(hint):
                record.model_config["defer_build"] = False
        if isinstance(options.get("response_class"), DefaultPlaceholder):
            options["response_class"] = LenientResponse
        super().__init__(path, endpoint, **{**options, "response_model_exclude_unset": True})

    def __hash__(self) -> int:
        """Of what a route is compared by: it is a key of what was found out about it."""
        return hash((self.path, self.endpoint))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


def _records(hint: object) -> Iterator[type[Record]]:
    if isinstance(hint, type) and issubclass(hint, Record):
        yield hint
    for part in get_args(hint):
        yield from _records(part)
