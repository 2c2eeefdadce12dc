"""Answers the declared endpoints of a server without the layers of the web framework, which cost more than all that a
rollout server does for a rollout itself. Every other address is the framework's, and so are these as soon as somebody
has put a layer of their own around the app.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request

from osmosis.serve.endpoints import DeclaredEndpoint

from .http import Handler, HttpProblem, answer_not_accepted, answer_problem
from .queue import NotAccepted

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_NAME = re.compile(r"{(\w+)}")


class RolloutApp(FastAPI):
    """A FastAPI app with a shorter way to its declared endpoints."""

    def __init__(self, guard: Callable[[ASGIApp], ASGIApp], **options: Any) -> None:
        """`guard` stands before every address. `options` are FastAPI's."""
        super().__init__(**options)
        self._paths: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handler]] = []
        self.endpoints: list[DeclaredEndpoint] = []
        """Those that the OpenAPI document tells of beside the framework's own."""
        self.add_middleware(_Layer, guard=guard)
        self._short = guard(self._answer)

    def add_endpoints(self, handlers: Mapping[DeclaredEndpoint, Handler]) -> None:
        """Serves these endpoints."""
        for endpoint, handler in handlers.items():
            self.router.add_route(endpoint.path, handler, methods=[endpoint.method])
            self.endpoints.append(endpoint)
            if _NAME.search(endpoint.path):
                pattern = re.compile(_NAME.sub(r"(?P<\1>[^/]+)", endpoint.path))
                self._patterns.append((endpoint.method, pattern, handler))
            else:
                self._paths[endpoint.method, endpoint.path] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(self.user_middleware) == 1 and self._knows(scope):
            await self._short(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        if scope.get("root_path"):
            return False
        method, path = scope["method"], scope["path"]
        handler = self._paths.get((method, path))
        for verb, pattern, candidate in self._patterns if handler is None else ():
            if verb == method and (found := pattern.fullmatch(path)):
                handler, scope["path_params"] = candidate, found.groupdict()
                break
        scope["osmosis.handler"] = handler
        return handler is not None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        request = Request(scope, receive, send)
        handler: Handler = scope["osmosis.handler"]
        try:
            response = await handler(request)
        except HttpProblem as problem:
            response = await answer_problem(request, problem)
        except NotAccepted as refusal:
            response = await answer_not_accepted(request, refusal)
        except Exception:
            await _broken(send)
            raise  # the server logs it
        await response(scope, receive, send)


class _Layer:
    """The guard as a layer of the framework."""

    def __init__(self, app: ASGIApp, guard: Callable[[ASGIApp], ASGIApp]) -> None:
        self._app = guard(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _broken(send: Send) -> None:
    body = b"Internal Server Error"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
