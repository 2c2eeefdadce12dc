"""How an endpoint of the remote-rollout protocol is declared: its path, the records it takes and gives, its errors and
its bearer. The routes of the rollout server and of the model proxy are made from these declarations, and FastAPI makes
their OpenAPI documents from the same ones. Requests never pass through FastAPI's own routing, which costs as much as
all that a rollout server does itself.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from osmosis.records.base import Record
from osmosis.records.describe import described

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

Bearer = Literal["serverKey", "rolloutKey", "callbackKey"]

_BEARERS: dict[Bearer, str] = {
    "serverKey": "The rollout server's API key, when it has one.",
    "rolloutKey": "Bearer token of one rollout's model endpoint: `llm_api_key`, or `api_key` in generation 0.2.",
    "callbackKey": "Bearer token of one rollout's callbacks: `controller_api_key`.",
}
_REASONS = {
    400: "The model rejected the request, or the request cannot be forwarded",
    401: "The bearer token is missing or wrong",
    403: "The lease token does not belong to this rollout",
    404: "Not found",
    409: "The id or key is already in use for another request",
    413: "The body is too large",
    422: "The body is not valid",
    424: "The model failed, after the proxy's own retries",
    429: "The queue is full; see Retry-After",
    500: "The agent's get_tools raised",
    503: "The server is shutting down; see Retry-After",
}


@dataclass(frozen=True)
class DeclaredEndpoint:
    """One method of one path. Placeholders in the path are strings."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    request: type[Record] | None = None
    response: type[Record] | None = None
    status: int = 200
    """Of success."""
    errors: tuple[int, ...] = ()
    bearer: Bearer | None = "serverKey"
    """None: open to everyone."""
    headers: tuple[str, ...] = ()
    """Names of the headers it needs."""


def openapi(
    title: str, endpoints: Iterable[DeclaredEndpoint], error: type[Record], *, others: Sequence[BaseRoute] = ()
) -> dict[str, Any]:
    """The OpenAPI document of `endpoints`, whose errors are all `error`, and of FastAPI's own routes in `others`."""
    from fastapi import Header, Security
    from fastapi.openapi.utils import get_openapi
    from fastapi.routing import APIRoute
    from fastapi.security import HTTPBearer

    def route(endpoint: DeclaredEndpoint) -> APIRoute:
        parameters: dict[str, Any] = {name: str for name in re.findall(r"{(\w+)}", endpoint.path)}
        parameters |= {re.sub(r"\W", "_", name): Annotated[str, Header(alias=name)] for name in endpoint.headers}
        if endpoint.request is not None:
            parameters["body"] = described(endpoint.request)
        dependencies = []
        if endpoint.bearer is not None:
            scheme = HTTPBearer(scheme_name=endpoint.bearer, description=_BEARERS[endpoint.bearer], auto_error=False)
            dependencies.append(Security(scheme))
        said: dict[int | str, dict[str, Any]] = {
            status: {"description": _REASONS[status], "model": described(error)} for status in endpoint.errors
        }
        return APIRoute(
            endpoint.path,
            _function_with(parameters),
            methods=[endpoint.method],
            summary=endpoint.summary,
            operation_id=re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
            status_code=endpoint.status,
            response_model=endpoint.response and described(endpoint.response),
            response_description="Success",
            # Without a default, FastAPI would tell of validation errors in a shape of its own.
            responses={**said, "default": {"description": "Any other error", "model": described(error)}},
            dependencies=dependencies,
        )

    routes = [*map(route, endpoints), *others]
    with warnings.catch_warnings():
        # FastAPI silences this remark of pydantic about its fields, but our records are built later than it thinks.
        warnings.filterwarnings("ignore", "The 'alias' attribute with value")
        return get_openapi(title=title, version="1", routes=routes, separate_input_output_schemas=False)


def _function_with(parameters: dict[str, Any]) -> Callable[[], None]:
    """A function with this signature; FastAPI reads it and nobody calls it."""

    def function() -> None: ...

    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by inspect
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in parameters.items()]
    )
    return function
