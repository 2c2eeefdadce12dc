"""Base models and the adapters that training runs made."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from .http import Http

Json = dict[str, Any]


class Models:
    def __init__(self, http: Http) -> None:
        self._http = http

    def page(self, kind: str, *, limit: int = 50, offset: int = 0) -> Json:
        """`kind` is `base` or `lora`."""
        return self._http.call("GET", f"models/{kind}", params={"limit": limit, "offset": offset})

    def all(self, kind: str) -> list[Json]:
        return list(self._http.pages(f"models/{kind}", "models"))

    def lora(self, name: str) -> Json:
        return self._http.call("GET", f"models/{quote(name, safe='')}")

    def base(self, name: str) -> Json:
        return self._http.call("GET", f"models/base/{quote(name, safe='')}")

    def deploy(self, name: str) -> Json:
        """`{id, model_name, status}`."""
        return self._http.call("POST", f"models/{quote(name, safe='')}/deploy", json={})

    def undeploy(self, name: str) -> Json:
        return self._http.call("POST", f"models/{quote(name, safe='')}/undeploy", json={})
