"""What docs/platform.md shows for a team's server, taken out of the page and tried: nginx with TLS in front of a
platform, the systemd unit, the container file."""

import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from osmosis.platform.__main__ import parser
from osmosis.platform.settings import PlatformSettings
from support.platform_process import PlatformProcess, until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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


def test_the_container_files_install_from_the_repository_and_start_the_platform() -> None:
    folder = TOP / "examples" / "container"
    text = (folder / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    steps = {word: rest for word, rest in lines}
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    for version in re.findall(r"python:3\.(\d+)-slim", text):
        assert int(version) >= int(project["requires-python"].removeprefix(">=3."))
    (extras,) = re.findall(r"\$wheel\[([a-z0-9,]+)\]", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {"git", "bubblewrap", "slirp4netns"} <= set(text.split())
    assert f"useradd --create-home {steps['USER']} && install -d -o {steps['USER']} -m 0700 {steps['VOLUME']}" in text
    assert steps["ENV"] == f"OSMOSIS_DATA_DIR={steps['VOLUME']}"
    shell = json.loads(steps["CMD"])[2].replace("$PUBLIC_URL", "https://osmosis.example.com")
    _is_serve(shlex.split(shell.removeprefix("exec ")))
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    build = services["platform"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).resolve() == folder / "Containerfile"
    assert {name.partition(":")[0] for each in services.values() for name in each["volumes"]} == {"data", "database"}
    assert set(PlatformSettings.model_fields) >= {"database_url", "data_dir"}


HOP = {"host", "connection", "content-length", "transfer-encoding", "keep-alive"}
"""Headers that a proxy does not forward."""


def forwarding_to(upstream: str) -> type[BaseHTTPRequestHandler]:
    client = httpx.Client(base_url=upstream, trust_env=False, timeout=60)

    class Forward(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = [(name, value) for name, value in self.headers.items() if name.lower() not in HOP]
            headers.append(("X-Forwarded-For", self.client_address[0]))
            answer = client.request(self.command, self.path, content=body, headers=headers)
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name not in HOP and name != "content-encoding":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = do_DELETE = forward

        def log_message(self, *_: object) -> None:
            pass

    return Forward


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[PlatformProcess, str]]:
    """A platform, and the address of the proxy in front of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    platform = PlatformProcess(tmp_path / "data", environ=dict(os.environ), public_url=url)
    platform.start()
    server = ThreadingHTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), forwarding_to(str(platform.http.base_url)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield platform, url
    finally:
        server.shutdown()
        server.server_close()
        platform.end()


def test_forms_uploads_and_pushes_work_through_a_proxy_that_changes_the_host(
    proxied: tuple[PlatformProcess, str], tmp_path: Path
) -> None:
    platform, url = proxied
    platform.http.close()
    platform.http = httpx.Client(base_url=url, trust_env=False, timeout=60)
    token = (platform.data_dir / "bootstrap.token").read_text().strip()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as browser:
        form = re.search(r'name="csrf" value="([^"]+)"', browser.get("/login").text)
        assert form
        sent = {"token": token, "csrf": form[1], "next": "/"}
        entered = browser.post("/login", data=sent, headers={"Origin": url})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert browser.get("/").status_code == 200
        elsewhere = browser.post("/login", data=sent, headers={"Origin": "https://evil.example"})
        assert elsewhere.status_code == 403
        assert browser.get("/metrics").status_code == 404, "whoever asks through a proxy is not from here"
    platform.login()
    platform.prepare(tmp_path / "checkout")  # pushes to, and uploads to, the addresses that the platform names
    repository = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
    assert repository.startswith(f"{url}/git/")
    run = platform.submit()
    assert platform.reaches(run, "finished")["eval_run"]["status"] == "finished"
