"""What docs/platform.md shows for a team's server, taken out of the page and tried: nginx with TLS in front of a
platform, the systemd unit, the container file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.platform.__main__ import parser
from osmosis.platform.settings import PlatformSettings
from osmosis.testing.platform_process import PlatformProcess, until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.flow

TOP = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
AROUND = """daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; {user}
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {server}
}}
"""


def block(beginning: str) -> str:
    """The block of the page that begins so."""
    found = re.search(rf"```\n({re.escape(beginning)}.*?)```", (TOP / "docs" / "platform.md").read_text(), re.DOTALL)
    assert found, f"docs/platform.md has no block that begins with {beginning}"
    return found[1]


def put_in(text: str, **places: str) -> str:
    """The text with what is of this machine in the place of what the page says; each must be there."""
    for name, place in places.items():
        known = PAGE[name]
        assert known in text, f"docs/platform.md no longer says {known}"
        text = text.replace(known, place)
    return text


PAGE = {
    "listen": "listen 443 ssl",
    "name": "osmosis.example.com;",
    "certificate": "/etc/letsencrypt/live/osmosis.example.com/fullchain.pem",
    "key": "/etc/letsencrypt/live/osmosis.example.com/privkey.pem",
    "upstream": "127.0.0.1:7575",
    "python": "/opt/osmosis/bin/python",
}


@pytest.fixture(scope="module")
def behind_nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlatformProcess, str, Path]]:
    """A platform, the address of the nginx before it, and the certificate that this shows."""
    if NGINX is None:
        pytest.skip("nginx is not here")
    folder = tmp_path_factory.mktemp("nginx")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"https://localhost:{port}"
    platform = PlatformProcess(folder / "data", environ=dict(os.environ), public_url=url)
    server = put_in(
        block("server {"),
        listen=f"listen 127.0.0.1:{port} ssl",
        certificate=str(certificate),
        key=str(key),
        name="localhost;",
        upstream=f"127.0.0.1:{platform.port}",
    )
    config = folder / "nginx.conf"
    config.write_text(AROUND.format(folder=folder, server=server, user="user root;" if os.geteuid() == 0 else ""))
    checked = subprocess.run([NGINX, "-t", "-q", "-c", str(config)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    nginx = subprocess.Popen([NGINX, "-c", str(config)])
    try:
        platform.start()
        verify = ssl.create_default_context(cafile=str(certificate))
        platform.http = httpx.Client(base_url=url, verify=verify, trust_env=False, timeout=60)
        until(platform.answers, "nginx answers")
        yield platform, url, certificate
    finally:
        platform.end()
        nginx.terminate()
        nginx.wait(30)


def test_forms_pushes_uploads_and_streams_go_through_nginx(
    behind_nginx: tuple[PlatformProcess, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, url, certificate = behind_nginx
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))  # the git that pushes is started with our environment
    token = (platform.data_dir / "bootstrap.token").read_text().strip()
    platform.login()
    platform.prepare(tmp_path / "checkout")
    verify = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=url, verify=verify, trust_env=False, timeout=60) as browser:
        form = re.search(r'name="csrf" value="([^"]+)"', browser.get("/login").text)
        assert form
        sent = {"token": token, "csrf": form[1], "next": "/"}
        entered = browser.post("/login", data=sent, headers={"Origin": url})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "secure" in entered.headers["set-cookie"].lower()
        assert browser.post("/login", data=sent, headers={"Origin": "https://evil.example"}).status_code == 403
        assert browser.get("/metrics").status_code == 404, "whoever asks through a proxy is not from here"
        name = platform.submit("wait:1")
        until(lambda: platform.rollouts(name), "a rollout is reported")
        run = platform.run(name)
        with browser.stream("GET", f"/runs/{run['id']}/events") as stream:
            first = next(line for line in stream.iter_lines() if line)
            assert first.startswith(("event:", "data:", "id:", "retry:", ":")), first
            assert platform.run(name)["status"] == "running", "the event came while the run goes on"
        (platform.folder(name) / "go").touch()
        assert platform.reaches(name, "finished")["eval_run"]["status"] == "finished"


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    unit = tmp_path / "osmosis.service"
    unit.write_text(put_in(block("[Unit]"), python=sys.executable))
    command = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    _is_serve(shlex.split(command.removeprefix("ExecStart=")))
    if program is None:
        pytest.skip("systemd-analyze is not here")
    done = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "osmosis.service" in line]) == (0, [])


def _is_serve(command: list[str]) -> None:
    """Options that the platform has, with which it would start."""
    assert command[1:3] == ["-m", "osmosis.platform"]
    given = parser().parse_args(command[3:])
    assert given.command == "serve"
    settings = PlatformSettings(data_dir=Path("/data"), public_url=given.public_url, host=given.host or "127.0.0.1")
    settings.refuse_open_http()


def test_the_container_file_names_what_there_is() -> None:
    steps = [line.split(maxsplit=1) for line in block("FROM ").splitlines() if line.strip()]
    said: dict[str, list[str]] = {}
    for word, rest in steps:
        said.setdefault(word, []).append(rest)
    assert steps[0][0] == "FROM"
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    version = re.fullmatch(r"python:3\.(\d+)-slim", said["FROM"][0])
    assert version
    assert int(version[1]) >= int(project["requires-python"].removeprefix(">=3."))
    for extra in re.findall(r"osmosis-ai\[([a-z,]+)\]", said["RUN"][0]):
        assert set(extra.split(",")) <= set(project["optional-dependencies"])
    assert {"git", "bubblewrap", "slirp4netns"} <= set(said["RUN"][0].split())
    user = said["USER"][0]
    made = [
        number for number, (word, rest) in enumerate(steps) if word == "RUN" and f"useradd --create-home {user}" in rest
    ]
    assert made
    assert made[0] < [word for word, _ in steps].index("USER")
    folder = said["VOLUME"][0]
    assert any(rest.endswith(f"-m 0700 {folder}") and f"-o {user}" in rest for rest in said["RUN"])
    assert said["ENV"] == [f"OSMOSIS_DATA_DIR={folder}"]
    _is_serve(json.loads(said["CMD"][0]))
