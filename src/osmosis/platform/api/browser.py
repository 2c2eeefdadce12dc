"""`POST /api/cli/browser-login`: a link that logs a browser in once, for a person whose terminal is logged in.

The link carries a device code that is approved already; it works once and for 15 minutes, and opening it asks
before it logs in.
"""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.records.contract.accounts import BrowserLink

from ..services import device
from .contract_route import ContractRoute
from .deps import CallerDep, PlatformDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.post("/browser-login")
def browser_login(platform: PlatformDep, caller: CallerDep) -> BrowserLink:
    with platform.db.write() as session:
        login = device.start(session, "browser")
        session.flush()
        device.decide(session, login.user_code, caller.user, approve=True)
    return BrowserLink(url=f"{platform.settings.url}/login/link?code={login.device_code}", expires_in=login.expires_in)
