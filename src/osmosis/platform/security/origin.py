"""Where a request comes from: what the audit log writes down, and by what people are told apart before they log in.

The server has replaced the address by that of `X-Forwarded-For` where the connection comes from a proxy that it trusts
(uvicorn: this machine, and what `FORWARDED_ALLOW_IPS` names); nothing else of a request is believed.
"""

from __future__ import annotations

from fastapi import Request


def address_of(request: Request) -> str:
    """The machine that asks, as the server or the proxy it trusts says; empty where there is none."""
    return request.client.host if request.client else ""
