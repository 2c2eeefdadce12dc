"""Base models and the adapters that training runs made."""

from __future__ import annotations

from urllib.parse import quote

from osmosis.records.contract.training_bodies import ModelDeployment, ModelPage, ModelRow

from .http import Http


class Models:
    """`kind` is `base` or `lora`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def page(self, kind: str, *, limit: int = 50, offset: int = 0) -> ModelPage:
        return self._http.read(ModelPage, "GET", f"models/{kind}", params={"limit": limit, "offset": offset})

    def all(self, kind: str) -> list[ModelRow]:
        return [row for page in self._http.pages(ModelPage, f"models/{kind}") for row in page.models]

    def lora(self, name: str) -> ModelRow:
        return self._http.read(ModelRow, "GET", f"models/{quote(name, safe='')}")

    def base(self, name: str) -> ModelRow:
        return self._http.read(ModelRow, "GET", f"models/base/{quote(name, safe='')}")

    def deploy(self, name: str) -> ModelDeployment:
        return self._http.read(ModelDeployment, "POST", f"models/{quote(name, safe='')}/deploy", json={})

    def undeploy(self, name: str) -> ModelDeployment:
        return self._http.read(ModelDeployment, "POST", f"models/{quote(name, safe='')}/undeploy", json={})
