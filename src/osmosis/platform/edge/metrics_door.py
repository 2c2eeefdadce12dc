"""Who may read `/metrics`: whoever has the operator's token, or, when there is none, this machine alone.

A reverse proxy on the same machine makes every client look as if it were here, so what came through one does not count
as from here, and neither does anything once a platform has a public address.
"""

from __future__ import annotations

import hmac

from fastapi import Request

from osmosis.base.net import host_of, is_loopback
from osmosis.errors import AuthRequired, NotFound
from osmosis.platform.api.deps import bearer
from osmosis.platform.settings import PlatformSettings

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""What proxies add."""


def check_reader(request: Request, settings: PlatformSettings) -> None:
    """AuthRequired without the token; NotFound for whoever is elsewhere where there is none."""
    token = settings.metrics_token.get_secret_value()
    if token:
        if not hmac.compare_digest(bearer(request).encode(), token.encode()):
            raise AuthRequired("this is not the token of /metrics", hint="it is OSMOSIS_METRICS_TOKEN of the platform")
        return
    here = request.client is not None and is_loopback(request.client.host)
    public = bool(settings.public_url) and not is_loopback(host_of(settings.public_url))
    if public or not here or any(name in request.headers for name in FORWARDED):
        raise NotFound(
            "/metrics is read on this machine alone", hint="start the platform with OSMOSIS_METRICS_TOKEN=SECRET"
        )
