#!/usr/bin/env bash
# Makes .venv from a lock file and says in one line why when it cannot.
# Usage: scripts/setup.sh LOCK STAMP   (does nothing when STAMP already holds the lock's hash)
set -euo pipefail
cd "$(dirname "$0")/.."
lock=$1
stamp=.venv/$2
python=${PYTHON:-python3}
room_kib_needed=2000000

fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

wanted=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && .venv/bin/python -c 'import din' 2>/dev/null; then
    exit 0
fi

command -v "$python" >/dev/null || fail "there is no $python on PATH" "install Python 3.11 or later, or call make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old" "DIN needs Python 3.11 or later; call make PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.maxsize < 2**32)' || fail "this Python is a 32-bit build" "DIN runs on 64-bit Linux (x86-64 or aarch64)"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "this Python has no venv module" "on Debian: apt-get install python3-venv"
room_kib=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$room_kib" -ge "$room_kib_needed" ] || fail "only $((room_kib / 1024)) MiB are free here, about $((room_kib_needed / 1024)) are needed" "free some space or clone elsewhere"

[ -x .venv/bin/python ] || "$python" -m venv .venv
log=.venv/setup.log
echo "installing what $lock names; that takes a minute or two ..."
# A wheel or nothing: no compiler is needed, and no package runs code of its own while installing.
if ! .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock" >"$log" 2>&1; then
    grep -qiE 'no space left|ENOSPC' "$log" && fail "the disk became full while installing" "free some space, then run make again"
    grep -qiE 'connection|timed out|resolve|network|retries' "$log" && fail "the package registry did not answer" "check the network or the proxy, then run make again; details are in $log"
    # A registry that cannot be reached looks to pip like one that has nothing.
    grep -qiE 'no matching distribution' "$log" && fail "the package registry cannot be reached, or lacks what $lock names" "check the network or the proxy, then run make again; details are in $log"
    grep -qiE 'hash' "$log" && fail "a package does not have the hash that $lock names" "nothing was installed; details are in $log"
    fail "pip could not install $lock" "details are in $log"
fi
"$python" - <<'PY' || fail "cannot write into .venv" "remove .venv and run make again"
import pathlib, sysconfig
site = next(pathlib.Path(".venv/lib").glob("python3*")) / "site-packages"
(site / "din-checkout.pth").write_text(str(pathlib.Path("src").resolve()) + "\n")
for name in ("din", "din-cli"):
    script = pathlib.Path(".venv/bin") / name
    script.write_text(f"#!{pathlib.Path('.venv/bin/python').absolute()}\nimport sys\nfrom din.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
PY
printf '%s' "$wanted" >"$stamp"
