#!/bin/sh
# The row is beside this script; Harbor puts both into the sandbox when the agent is done.
cd "$(dirname "$0")" || exit 1
python3 check.py /app/answer.txt osmosis_row.json >/logs/verifier/reward.txt
