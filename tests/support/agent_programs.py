"""Stand-ins of ours for agent programs that a test machine lacks: each asks its model once, over the API of its own."""

from pathlib import Path

NAMES = ("claude", "codex", "mini")
SCRIPT = r"""#!/usr/bin/env python3
import json, os, pathlib, re, sys, urllib.request

name, words, variables = pathlib.Path(sys.argv[0]).name, sys.argv[1:], os.environ


def option(*names):
    return next(words[words.index(name) + 1] for name in names if name in words)


def ask(url, key, body):
    headers = {"Content-Type": "application/json", **key}
    request = urllib.request.Request(url, json.dumps({**body, "stream": True}).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    lines = opener.open(request).read().decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


if name == "claude":
    token = variables.get("ANTHROPIC_AUTH_TOKEN")
    key = bearer(token) if token else {"x-api-key": variables["ANTHROPIC_API_KEY"]}
    body = {"model": option("--model"), "max_tokens": 99, "messages": [{"role": "user", "content": option("-p")}]}
    events = ask(variables["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true", key, body)
    assert events[-1]["type"] == "message_stop", events
    texts = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
elif name == "codex":
    config = pathlib.Path.home() / ".codex" / "config.toml"
    text = "\n".join(word for flag, word in zip(words, words[1:]) if flag == "-c") or config.read_text()
    base_url, env_key = (re.search(rf'{name}\s*=\s*"?([^"\n]+)', text)[1] for name in ("base_url", "env_key"))
    model = option("-m") if "-m" in words else re.search(r'model = "(.+)"', text)[1]
    guide = pathlib.Path("AGENTS.md")
    body = {"model": model, "input": words[-1], "instructions": guide.read_text() if guide.exists() else "Be brief."}
    events = ask(base_url + "/responses", bearer(variables[env_key]), {**body, "store": False})
    assert events[-1]["type"] == "response.completed", events
    texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
else:
    model = option("-m").removeprefix("openai/")
    body = {"model": model, "messages": [{"role": "user", "content": option("-t")}]}
    chunks = ask(variables["OPENAI_API_BASE"] + "/chat/completions", bearer(variables["OPENAI_API_KEY"]), body)
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
print(json.dumps({"result": "".join(texts)}))
"""


def write_stand_ins(folder: Path) -> str:
    """Write the programs; return the folder, for the PATH."""
    folder.mkdir()
    for name in NAMES:
        program = folder / name
        program.write_text(SCRIPT)
        program.chmod(0o755)
    return str(folder)
