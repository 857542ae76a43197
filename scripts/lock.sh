#!/usr/bin/env bash
# Writes the lock files anew: exact versions with the hashes of every wheel (x86-64 and aarch64).
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install --quiet pip-tools
compile=("$tools/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url --no-emit-find-links
    --no-emit-trusted-host --strip-extras --no-header --allow-unsafe)
"${compile[@]}" --extra demo -o requirements.lock pyproject.toml
"${compile[@]}" --extra demo --extra test -o requirements-test.lock pyproject.toml
"${compile[@]}" -o requirements-mlserver.lock requirements-mlserver.in
