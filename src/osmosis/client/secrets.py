"""Secrets of a workspace or a person: values go in once and never come back."""

from __future__ import annotations

from osmosis.records.contract.secret import WIRE_SCOPE, NewSecret, SecretName, SecretPage, SecretRow

from .http import Http, Params

PATH = "environment-secrets"


class SecretsClient:
    """Scopes are `personal` and `workspace`; on the wire `personal` is called `user`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def page(self, *, scope: str = "all", limit: int = 50, offset: int = 0) -> SecretPage:
        params: Params = {"scope": WIRE_SCOPE[scope], "limit": limit, "offset": offset}
        page = self._http.read(SecretPage, "GET", PATH, params=params)
        rows = [row.for_people() for row in page.environment_secrets]
        return page.model_copy(update={"environment_secrets": rows})

    def all(self, *, scope: str = "all") -> list[SecretRow]:
        pages = self._http.pages(SecretPage, PATH, params={"scope": WIRE_SCOPE[scope]})
        return [row.for_people() for page in pages for row in page.environment_secrets]

    def set(self, name: str, value: str, *, scope: str) -> SecretRow:
        """Create or replace; the row, without the value."""
        body = NewSecret(name=name, value=value, scope=WIRE_SCOPE[scope])
        return self._http.read(SecretRow, "POST", PATH, json=body).for_people()

    def delete(self, name: str, *, scope: str) -> None:
        self._http.call("DELETE", PATH, json=SecretName(name=name, scope=WIRE_SCOPE[scope]))
