"""Answers the routes of the API in one step: what a route's function declares is read once, and a request is then
parsed, authenticated, served and written by one thread, without the layers of the web framework, which cost more than
most of our answers do.

The framework stays the measure. It describes the routes, and it answers whatever is not understood here in full: a
route that asks for more than `plan_of` knows, another method, a body that is not JSON, a value that does not fit. Such
a request is passed on before anything was done for it. What stands around the routes (request log, host names, sizes
of bodies, versions of clients) stands around both.
"""

from __future__ import annotations

import contextvars
import inspect
import re
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from json import JSONDecodeError
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from fastapi import Request, Response, params
from pydantic import TypeAdapter
from pydantic import ValidationError as BadShape
from pydantic_core import PydanticSerializationError
from starlette.convertors import PathConvertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.errors import OsmosisError
from osmosis.platform import Platform
from osmosis.platform.slow_work import Kind, apart, marked
from osmosis.records.base import Record

from .contract_route import ContractRoute
from .deps import get_platform
from .error_bodies import explained, known_error
from .strict_json import LenientResponse, read_json

THREADS = 16
"""Requests that are answered at once; more wait for their turn. More threads would only wait for each other: a process
runs Python in one at a time, and each statement gives way and has to wait until it may go on."""
_PLAIN = (str, int, float, bool)
Said = TypeVar("Said")


class _Aside(Exception):
    """This request is the framework's."""


@dataclass(slots=True)
class _Asked:
    """One request, as the parts of a plan read it."""

    request: Request
    platform: Platform
    body: bytes
    query: Mapping[str, str]
    known: dict[Callable[..., object], object] = field(default_factory=dict)
    """What dependencies have said already."""


_Part = Callable[[_Asked], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a route is answered."""

    route: ContractRoute
    function: Callable[..., object]
    apart: Kind | None
    """What kind of slow work it is; None where a thread of ours does it."""
    parsed: Mapping[str, _Part]
    """Arguments that are read from the request: nothing has been done when they do not fit."""
    found: Mapping[str, _Part]
    """Arguments that are looked up: who asks, for example."""
    reads_body: bool
    write: TypeAdapter[Any] | None
    """None where the function makes its answer itself."""

    def work(self, asked: _Asked) -> Response:
        """The answer. OsmosisError as the function raises it."""
        try:
            arguments = {name: part(asked) for name, part in self.parsed.items()}
        except (BadShape, JSONDecodeError):
            raise _Aside from None
        for name, part in self.found.items():
            arguments[name] = part(asked)
        answer = self.function(**arguments)
        if isinstance(answer, Response):
            return answer
        assert self.write is not None
        try:
            text = self.write.dump_json(answer, by_alias=True, exclude_unset=True)
        except PydanticSerializationError:  # half a character was stored
            shown = self.write.dump_python(answer, mode="json", by_alias=True, exclude_unset=True)
            return LenientResponse(shown, self.route.status_code or 200)
        return Response(text, self.route.status_code or 200, media_type="application/json")


@cache
def plan_of(route: ContractRoute) -> Plan | None:
    """How this route is answered in one step; None for one that only the framework can answer.

    Made when the route is first asked for: the plans of all of them take longer than the rest of the start.
    """
    if route.dependencies:
        return None
    kind, function = marked(route.endpoint) or (None, route.endpoint)
    if inspect.iscoroutinefunction(function):
        return None
    parsed: dict[str, _Part] = {}
    found: dict[str, _Part] = {}
    reads_body = False
    hints = get_type_hints(function, include_extras=True)
    for name, given in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        if hint is Request or _about(hint, params.Depends):
            if (part := _found(hint)) is None:
                return None
            found[name] = part
        elif name in route.param_convertors:
            parsed[name] = _path(name, hint)
        elif _is_body(hint, given.default):
            parsed[name], reads_body = _body(hint, given.default), True
        elif _is_plain(hint):
            parsed[name] = _query(name, hint, given.default)
        else:
            return None
    if route.response_model is None:
        made = hints.get("return")
        if not (isinstance(made, type) and issubclass(made, Response)):
            return None
    write = TypeAdapter(route.response_model) if route.response_model is not None else None
    return Plan(route, function, kind, parsed, found, reads_body, write)


def _about(hint: object, kind: type[Said]) -> list[Said]:
    """What the annotation of an argument says beside its type."""
    return [one for one in get_args(hint)[1:] if isinstance(one, kind)] if get_origin(hint) is Annotated else []


def _found(hint: object) -> _Part | None:
    """What looks an argument up; None when its dependency asks for more than the request and the platform."""
    if hint is Request:
        return lambda asked: asked.request
    depends = _about(hint, params.Depends)
    call = depends[0].dependency if depends else None
    if call is get_platform:
        return lambda asked: asked.platform
    if call is None or inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call):
        return None
    hints = get_type_hints(call, include_extras=True)
    parts = {name: _found(hints.get(name)) for name in inspect.signature(call).parameters}
    known = {name: part for name, part in parts.items() if part is not None}
    if len(known) < len(parts):
        return None

    def ask(asked: _Asked) -> object:
        if call not in asked.known:
            asked.known[call] = call(**{name: part(asked) for name, part in known.items()})
        return asked.known[call]

    return ask


def _path(name: str, hint: Any) -> _Part:
    if hint is str:
        return lambda asked: asked.request.path_params[name]
    read = TypeAdapter[Any](hint).validate_python
    return lambda asked: read(asked.request.path_params[name])


def _query(name: str, hint: Any, default: object) -> _Part:
    read = TypeAdapter[Any](hint).validate_python

    def ask(asked: _Asked) -> object:
        if name in asked.query:
            return read(asked.query[name])
        if default is inspect.Parameter.empty:
            raise _Aside
        return default

    return ask


def _body(hint: Any, default: object) -> _Part:
    read = TypeAdapter[Any](hint).validate_python
    needed = default is inspect.Parameter.empty or isinstance(default, params.Body)

    def ask(asked: _Asked) -> object:
        value = read_json(asked.body) if asked.body else None
        if value is None and not needed:
            return default
        return read(value, from_attributes=True)

    return ask


def _is_body(hint: object, default: object) -> bool:
    return isinstance(default, params.Body) or any(
        isinstance(one, type) and issubclass(one, Record) for one in (hint, *get_args(hint))
    )


def _is_plain(hint: object) -> bool:
    """Whether it is an argument of the query: a word, a number, or nothing, under its own name."""
    if get_origin(hint) is Annotated:
        said = _about(hint, params.Param)
        named = [one for one in said if not isinstance(one, params.Query) or one.alias or one.validation_alias]
        return not named and _is_plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return set(get_args(hint)) <= {*_PLAIN, NoneType}
    return hint in _PLAIN


class RouteTable:
    """Which route takes a request, as the framework would choose: the first of those that match."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._fixed: dict[tuple[str, str], ContractRoute | None] = {}
        self._shaped: dict[tuple[str, int], list[tuple[re.Pattern[str], ContractRoute | None]]] = {}
        open_ended: list[tuple[re.Pattern[str], None]] = []
        for route in routes:
            if not isinstance(route, (Route, Mount)):
                continue
            methods: Sequence[str] = sorted(route.methods or ()) if isinstance(route, Route) else ()
            if not methods or any(isinstance(one, PathConvertor) for one in route.param_convertors.values()):
                # a file tree: what comes later and looks like it is its own
                open_ended.append((route.path_regex, None))
                for known in self._shaped.values():
                    known.append((route.path_regex, None))
                continue
            ours = route if isinstance(route, ContractRoute) else None
            for method in methods:
                if not route.param_convertors and not any(found.match(route.path) for found, _ in open_ended):
                    first = ours if self._first(method, route.path) else None
                    self._fixed.setdefault((method, route.path), first)
                    continue
                shape = method, route.path.count("/")
                self._shaped.setdefault(shape, list(open_ended)).append((route.path_regex, ours))

    def _first(self, method: str, path: str) -> bool:
        """Whether no pattern stands before this path that takes it, too."""
        return not any(found.match(path) for found, _ in self._shaped.get((method, path.count("/")), ()))

    def find(self, scope: Scope) -> Plan | None:
        """The plan of a request, its `path_params` put into the scope; None for one that is the framework's."""
        method, path = scope["method"], scope["path"]
        if scope.get("root_path"):
            return None
        if (method, path) in self._fixed:
            scope["path_params"] = {}
            return _planned(self._fixed[method, path])
        for pattern, route in self._shaped.get((method, path.count("/")), ()):
            if found := pattern.match(path):
                scope["path_params"] = found.groupdict()
                return _planned(route)
        return None


def _planned(route: ContractRoute | None) -> Plan | None:
    return plan_of(route) if route is not None else None


class DirectRoutes:
    """ASGI middleware, the innermost: before it stands whatever holds for every request."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self._table = RouteTable(routes)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan = self._table.find(scope) if scope["type"] == "http" else None
        if plan is None:
            await self.app(scope, receive, send)
            return
        body = _Body(receive)
        if plan.reads_body and not await body.read(scope):
            await self.app(scope, body.again, send)
            return
        scope["route"] = plan.route
        request = Request(scope, body.again)
        asked = _Asked(request, request.app.state.platform, body.content, _query_of(scope))
        try:
            response = await self._answer(plan, asked)
        except _Aside:
            await self.app(scope, body.again, send)
            return
        except Exception as error:
            known = error if isinstance(error, OsmosisError) else explained(error)
            if known is None:
                raise
            response = known_error(request, known)
        await response(scope, receive, send)

    async def _answer(self, plan: Plan, asked: _Asked) -> Response:
        if plan.apart is not None:
            return await apart(plan.apart, plan.work, asked)
        run = contextvars.copy_context().run  # which knows the request's id
        return await get_running_loop().run_in_executor(self._threads, run, plan.work, asked)


def _query_of(scope: Scope) -> Mapping[str, str]:
    """The last value of each name, as the framework takes it."""
    given = scope["query_string"]
    return dict(parse_qsl(given.decode("latin-1"), keep_blank_values=True)) if given else {}


class _Body:
    """The body of a request, kept so that the framework can read it once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []
        self._cut: HTTPException | None = None
        self.content = b""

    async def read(self, scope: Scope) -> bool:
        """Whether it came to its end, and is JSON by its header or nothing at all."""
        headers = dict(scope["headers"])
        more = True
        while more:
            try:
                message = await self._receive()
            except HTTPException as error:  # too large, for this caller: said again to whoever reads it next
                self._cut = error
                return False
            self._messages.append(message)
            if message["type"] != "http.request":
                return False
            more = message.get("more_body", False)
        self.content = b"".join(message.get("body", b"") for message in self._messages)
        return not self.content or headers.get(b"content-type", b"").split(b";")[0].strip() == b"application/json"

    async def again(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        if self._cut is not None:
            raise self._cut
        return await self._receive()
