"""Answers the declared endpoints of a server without the layers of the web framework, which cost more than all that a
rollout server does for a rollout itself, and a third of its start. Every other address is the framework's, and so are
these as soon as somebody has put a layer of their own around the app; it is loaded then.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from starlette.datastructures import State
from starlette.requests import Request

from osmosis.records.wire import ErrorReply
from osmosis.serve.deferred import DeferredApp
from osmosis.serve.endpoints import DeclaredEndpoint, openapi

from .http import Handler, HttpProblem, answer_not_accepted, answer_problem
from .queue import NotAccepted

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

Guard = Callable[["ASGIApp"], "ASGIApp"]
Life = Callable[[Any], AbstractAsyncContextManager[Any]]

_NAME = re.compile(r"{(\w+)}")


class RolloutApp(DeferredApp):
    """A FastAPI app with a shorter way to its declared endpoints. What else one does with it makes the FastAPI app."""

    def __init__(self, title: str, guard: Guard, life: Life) -> None:
        """`guard` stands before every address; `life` is entered with the app while it is served."""
        declared = _Declared(title, guard, life)
        super().__init__(declared.framework)
        object.__setattr__(self, "_declared", declared)

    @property
    def state(self) -> State:
        """As of the FastAPI app."""
        framework = _framework_of(self)
        return _declared_of(self).state if framework is None else framework.state

    def add_endpoints(self, handlers: Mapping[DeclaredEndpoint, Handler]) -> None:
        """Serves these endpoints: before anything else is done with the app."""
        _declared_of(self).add(handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared, framework = _declared_of(self), _framework_of(self)
        if scope["type"] == "lifespan" and framework is None:
            await declared.live(self, scope, receive, send)
        elif scope["type"] == "http" and _plain(framework) and declared.knows(scope):
            scope["app"] = self
            await declared.short(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _declared_of(app: RolloutApp) -> _Declared:
    found: _Declared = object.__getattribute__(app, "_declared")
    return found


def _framework_of(app: RolloutApp) -> FastAPI | None:
    """The FastAPI app, if anything has needed it yet."""
    found: FastAPI | None = object.__getattribute__(app, "_made")
    return found


def _plain(framework: FastAPI | None) -> bool:
    """Whether nobody has added a layer to ours."""
    return framework is None or len(framework.user_middleware) == 1


class _Declared:
    """The endpoints of an app, and the two ways to them."""

    def __init__(self, title: str, guard: Guard, life: Life) -> None:
        self.state = State()
        self.short = guard(self._answer)
        self._title = title
        self._guard = guard
        self._life = life
        self._handlers: dict[DeclaredEndpoint, Handler] = {}
        self._paths: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handler]] = []

    def add(self, handlers: Mapping[DeclaredEndpoint, Handler]) -> None:
        self._handlers.update(handlers)
        for endpoint, handler in handlers.items():
            if _NAME.search(endpoint.path):
                pattern = re.compile(_NAME.sub(r"(?P<\1>[^/]+)", endpoint.path))
                self._patterns.append((endpoint.method, pattern, handler))
            else:
                self._paths[endpoint.method, endpoint.path] = handler

    def framework(self) -> FastAPI:
        """The FastAPI app with the same endpoints, guard and life."""
        from fastapi import FastAPI

        app = FastAPI(title=self._title, version="1", lifespan=self._life)
        app.state = self.state
        app.add_middleware(_Layer, guard=self._guard)
        app.add_exception_handler(HttpProblem, answer_problem)
        app.add_exception_handler(NotAccepted, answer_not_accepted)
        for endpoint, handler in self._handlers.items():
            app.router.add_route(endpoint.path, handler, methods=[endpoint.method])

        def document() -> dict[str, Any]:
            if app.openapi_schema is None:
                app.openapi_schema = openapi(self._title, self._handlers, ErrorReply, others=app.routes)
            return app.openapi_schema

        app.openapi = document  # type: ignore[method-assign]  # FastAPI documents this
        return app

    def knows(self, scope: Scope) -> bool:
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

    async def live(self, app: RolloutApp, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's lifespan, as the framework speaks it."""
        step = "startup"
        await receive()
        try:
            async with self._life(app) as state:
                if state is not None:
                    scope["state"].update(state)
                await send({"type": "lifespan.startup.complete"})
                step = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{step}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})


class _Layer:
    """The guard as a layer of the framework."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = guard(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _broken(send: Send) -> None:
    body = b"Internal Server Error"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
