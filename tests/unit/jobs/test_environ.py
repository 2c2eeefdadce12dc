"""Who sees what: uv and git the machine, the rollout its own `[env]` and secrets."""

from __future__ import annotations

from osmosis.jobs.commands import git_environ, rollout_environ, uv_environ

JOB = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LC_CTYPE": "C.UTF-8",
    "https_proxy": "http://proxy:1",
    "UV_INDEX_URL": "https://index.example.org/simple",
    "UV_PYTHON": "3.9",
    "PYTHONPATH": "/somewhere",
    "VIRTUAL_ENV": "/somewhere/else",
    "OPENAI_API_KEY": "not asked for by the rollout",
    "SEARCH_KEY": "s3cret-value",
    "MODE": "fast",
}


def test_uv_and_git_see_the_machine_only() -> None:
    for environ in (uv_environ(JOB), git_environ(JOB)):
        assert environ["PATH"] == "/usr/bin"
        assert environ["https_proxy"] == "http://proxy:1"
        assert not {"SEARCH_KEY", "OPENAI_API_KEY", "MODE", "PYTHONPATH", "VIRTUAL_ENV"} & set(environ)
    assert uv_environ(JOB)["UV_PYTHON_DOWNLOADS"] == "never"
    assert "UV_PYTHON" not in uv_environ(JOB)
    assert "UV_INDEX_URL" not in uv_environ(JOB, without=["UV_INDEX_URL"])


def test_the_rollout_sees_its_env_and_its_secrets() -> None:
    environ = rollout_environ(JOB, env={"MODE": "slow"}, secrets={"SEARCH_KEY": "its-value", "WORD": "x"}, venv="/venv")
    assert (environ["SEARCH_KEY"], environ["WORD"]) == ("its-value", "x")
    assert environ["MODE"] == "slow"
    assert (environ["PATH"], environ["VIRTUAL_ENV"]) == ("/venv/bin:/usr/bin", "/venv")
    assert not {"OPENAI_API_KEY", "UV_INDEX_URL", "PYTHONPATH"} & set(environ)
