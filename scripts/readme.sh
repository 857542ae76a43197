#!/usr/bin/env bash
# Runs every `sh` block of the README but `make test`, verbatim and in order, in a clean clone with
# a new HOME. The demo's own set-up is what a newcomer gets.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'kill_left_over; rm -rf "$work"' EXIT
kill_left_over() {
    if [ -x "$work/din/.venv/bin/din" ]; then
        (cd "$work/din" && HOME="$work/home" .venv/bin/din down >/dev/null 2>&1) || true
    fi
}
mkdir "$work/home"
git clone --quiet "$here" "$work/din"
python3 - "$work/din/README.md" >"$work/blocks.sh" <<'PY'
import pathlib, re, sys
text = pathlib.Path(sys.argv[1]).read_text()
blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S)
print("set -euo pipefail")
for block in blocks:
    if block.strip() != "make test":
        print(f"echo {repr('+ ' + block.strip().splitlines()[0])}")
        print(block)
PY
cd "$work/din"
env -i HOME="$work/home" PATH="$PATH" LANG=C.UTF-8 TERM=dumb \
    $(env | grep -E '^(PIP_|https?_proxy|no_proxy|OPENBLAS_CORETYPE)' | cut -d= -f1 | sed 's/.*/&=x/' | cut -d= -f1 | while read -r name; do printf '%s=%s ' "$name" "${!name}"; done) \
    bash "$work/blocks.sh"
echo "every block of the README ran"
