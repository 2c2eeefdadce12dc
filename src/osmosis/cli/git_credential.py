"""The git credential helper of a platform's git host: answers git's `get` on stdin, stores and erases nothing."""

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from osmosis.client.credentials import CredentialStore
from osmosis.client.http import normalize_url
from osmosis.errors import OsmosisError


def answer(action: str, stdin: TextIO, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str]) -> int:
    request = dict(line.rstrip("\n").partition("=")[::2] for line in stdin if "=" in line)
    if action != "get":
        return 0
    try:
        url = normalize_url(f"{request.get('protocol', 'https')}://{request.get('host', '')}")
        login = CredentialStore(environ).find(url)
    except OsmosisError as error:
        stderr.write(f"osmosis: {error.message}\n")
        return 0
    if login is None or login.expired:
        state = "the login has expired:" if login else "not logged in to"
        stderr.write(f"osmosis: {state} {url}: osmosis login --platform {url}\n")
        return 0
    stdout.write(f"username={login.user.get('handle') or 'osmosis'}\npassword={login.token}\n")
    return 0


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1] if len(sys.argv) > 1 else "", sys.stdin, sys.stdout, sys.stderr, os.environ))
