#!/usr/bin/env bash
# Sets a host of a cluster up: logins find the environment, and the environment has what rayfl needs.
set -euo pipefail
cd ~/rayfl
line='. ~/rayfl/examples/clusters/environment.sh'
grep -qxF "$line" ~/.bashrc 2> /dev/null || echo "$line" >> ~/.bashrc
. examples/clusters/environment.sh

if [ "$RAYFL_VENV" != "$HOME/rayfl/.venv" ]; then   # given: nothing is installed
    "$RAYFL_VENV/bin/python" -c 'import rayfl.engine.ray_workers'
    exit
fi
[ -x "$RAYFL_VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$RAYFL_VENV"
pip="$RAYFL_VENV/bin/python -m pip --quiet --disable-pip-version-check"
touch versions.txt                                  # from the head, on workers: all hosts get the same versions
$pip install --constraint versions.txt --editable .
$pip freeze --exclude-editable | { grep -v "^rayfl[=@ ]" || true; } > versions.txt
