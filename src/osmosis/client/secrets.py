"""Secrets of a workspace or a person: values go in once and never come back."""

from __future__ import annotations

from typing import Any

from .http import Http

Json = dict[str, Any]
TO_WIRE = {"personal": "user", "workspace": "workspace", "all": "all"}
FROM_WIRE = {"user": "personal", "workspace": "workspace"}


class Secrets:
    """Scopes are `personal` and `workspace`; on the wire `personal` is called `user`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def page(self, *, scope: str = "all", limit: int = 50, offset: int = 0) -> Json:
        params = {"scope": TO_WIRE[scope], "limit": limit, "offset": offset}
        page = self._http.call("GET", "environment-secrets", params=params)
        page["environment_secrets"] = [_shown(row) for row in page.get("environment_secrets") or []]
        return page

    def all(self, *, scope: str = "all") -> list[Json]:
        rows = self._http.pages("environment-secrets", "environment_secrets", params={"scope": TO_WIRE[scope]})
        return [_shown(row) for row in rows]

    def set(self, name: str, value: str, *, scope: str) -> Json:
        """Create or replace; the row, without the value."""
        body = {"name": name, "value": value, "scope": TO_WIRE[scope]}
        return _shown(self._http.call("POST", "environment-secrets", json=body))

    def delete(self, name: str, *, scope: str) -> None:
        self._http.call("DELETE", "environment-secrets", json={"name": name, "scope": TO_WIRE[scope]})


def _shown(row: Json) -> Json:
    return {**row, "scope": FROM_WIRE.get(str(row.get("scope")), row.get("scope"))}
