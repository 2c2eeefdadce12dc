"""Requests of one operation, made from an OpenAPI document in and out of its bounds, the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings

Send = Callable[..., httpx.Response]
"""Takes `method`, `url`, `headers` and a body as httpx does."""
FEW, MANY = 3, 200


def asked(
    send: Send, operation: Any, examples: int, headers: dict[str, str], *, base_url: str, **in_path: str
) -> list[str]:
    """The answers that were 5xx, as request and status; 501 says that something is not offered. `in_path` are values of
    parameters of the path that every request has."""
    found: list[str] = []

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        for name, value in in_path.items():
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        sent = case.as_transport_kwargs(base_url=base_url)
        sent["headers"] = {**dict(sent.get("headers") or {}), **headers}
        known = ("method", "url", "headers", "params", "json", "data", "content")
        answer = send(**{name: sent[name] for name in known if name in sent})
        if answer.status_code >= 500 and answer.status_code != 501:
            found.append(f"{case.method} {case.path}: {answer.status_code} {answer.text[:200]}")

    ask()
    return found
