"""Which environment variables reach which process of a job.

uv and git get the machine's part only: no secret, no `[env]`, nothing of the job's own Python. The rollout gets
that, its `[env]` and its secrets. The job itself has neither of those two in its environment, nor its lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from osmosis.base.git import fetching_environ

KEEP = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        "SYSTEMROOT",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "SSH_AUTH_SOCK",
        "XDG_CACHE_HOME",
        "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
    }
)
KEEP_PREFIXES = ("LC_", "UV_", "PIP_", "NIX_")
# These would point uv at another interpreter, project or target than the one the job names.
UV_STEERING = frozenset(
    {
        "UV_PYTHON",
        "UV_PROJECT",
        "UV_PROJECT_ENVIRONMENT",
        "UV_WORKING_DIRECTORY",
        "UV_SYSTEM_PYTHON",
        "UV_BREAK_SYSTEM_PACKAGES",
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_EXCLUDE",
        "UV_TARGET",
        "UV_PREFIX",
        "UV_RUN_RECURSION_DEPTH",
        "UV_ENV_FILE",
        "UV_FROZEN",
        "UV_LOCKED",
        "UV_NO_SYNC",
    }
)


def machine_environ(environ: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, str]:
    """The machine's part of `environ`: paths, locale, certificates, proxies, package index settings."""
    dropped = set(without)
    kept = {}
    for name, value in environ.items():
        if name in dropped or name in UV_STEERING:
            continue
        if name in KEEP or name.startswith(KEEP_PREFIXES) or name.lower().endswith("_proxy"):
            kept[name] = value
    return kept


def uv_environ(environ: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, str]:
    """For uv: the machine's part; Python is never downloaded, output is plain."""
    # A download of Python hangs on machines that reach only a package index.
    return {**machine_environ(environ, without=without), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


def git_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """For git: what a fetch needs; ssh asks no question either."""
    made = fetching_environ(environ, settings={"advice.detachedHead": "false"})
    return {**made, "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20"}


def rollout_environ(
    environ: Mapping[str, str],
    *,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    venv: str | None = None,
) -> dict[str, str]:
    """For the rollout server: the machine's part without index settings, then `[env]`, then the secrets.

    `venv` is its virtual environment, active as if it had been activated.
    """
    machine = machine_environ(environ)
    made = {name: value for name, value in machine.items() if not name.startswith(("UV_", "PIP_"))}
    if venv:
        made["VIRTUAL_ENV"] = venv
        made["PATH"] = f"{venv}/bin:{made['PATH']}" if made.get("PATH") else f"{venv}/bin"
    return {**made, **env, **secrets}
