#!/bin/sh
# Writes into ../python which Python runs the workflow: one that has all it needs, or a new environment's.
set -eu
cd "$(dirname "$0")"
root=$(cd .. && pwd)
for python in "$root/venv/bin/python" python3 python; do
    if "$python" -m osmosis.sdk.harbor.entrypoint --check @PROTOCOL@ requirements.txt >/dev/null 2>&1; then
        command -v "$python" >"$root/python"
        exit 0
    fi
done
base=
for python in python3 python python3.13 python3.12 python3.11 python3.10; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
        base=$(command -v "$python")
        break
    fi
done
rm -rf "$root/venv"
if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --no-project ${base:+--python "$base"} "$root/venv"
    uv pip install --quiet --python "$root/venv/bin/python" --requirements requirements.txt
elif [ -n "$base" ]; then
    "$base" -m venv "$root/venv"
    "$root/venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
else
    echo "this image has neither uv nor Python 3.10 or later: a workflow needs one of them" >&2
    exit 3
fi
echo "$root/venv/bin/python" >"$root/python"
