#!/usr/bin/env bash
# A real server of the Open Inference Protocol for tests: MLServer (Apache-2.0) in a virtual
# environment of its own, .cache/mlserver. Does nothing when it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.cache/mlserver
lock=requirements-mlserver.lock
python=${PYTHON:-python3}

fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

wanted=$(sha256sum <"$lock" | cut -d' ' -f1)
if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$wanted" ] && "$folder/bin/python" -c 'import mlserver' 2>/dev/null; then
    exit 0
fi
mkdir -p .cache
rm -rf "$folder"
"$python" -m venv "$folder"
echo "installing MLServer for tests; that takes half a minute or so ..."
if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock" >"$folder/setup.log" 2>&1; then
    fail "pip could not install $lock" "check the network or the proxy, then run make again; details are in $folder/setup.log"
fi
printf '%s' "$wanted" >"$folder/stamp"
