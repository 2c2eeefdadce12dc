"""What clients of this API ask for and this platform does not have: answered with that sentence and a code.

Without these routes they would read "no such path", which sounds like a wrong address.
"""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.errors import NotOffered
from osmosis.records.contract.submitted import SubmittedRun

from .contract_route import ContractRoute
from .deps import ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute, include_in_schema=False)
METHODS = ["GET", "POST", "DELETE"]


def benchmark(scope: ScopeDep) -> SubmittedRun:
    raise NotOffered("this platform does not offer benchmarks", hint="run an evaluation: osmosis eval submit")


def dev_server(scope: ScopeDep) -> None:
    raise NotOffered(
        "this platform does not offer development servers",
        hint="run the rollout here: osmosis eval run CONFIG, or serve it: osmosis serve",
    )


for path in ("/benchmarks/{key:path}", "/benchmark-runs/{name:path}"):
    router.add_api_route(path, benchmark, methods=METHODS)
router.add_api_route("/benchmark-runs", benchmark, methods=["POST"])
for path in ("/dev-rollout-server", "/dev-rollout-server/{name:path}"):
    router.add_api_route(path, dev_server, methods=METHODS)
