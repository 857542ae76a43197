#!/usr/bin/env bash
# Debian packages that tests need beyond Python: network tools for tests in namespaces, OCI runtimes, and the
# compiler of FlatBuffers, which reads what we write.
set -euo pipefail
missing=()
command -v ip >/dev/null || missing+=(iproute2)
command -v git >/dev/null || missing+=(git)
command -v curl >/dev/null || missing+=(curl)
command -v flatc >/dev/null || missing+=(flatbuffers-compiler)
command -v runc >/dev/null || missing+=(runc)
command -v crun >/dev/null || missing+=(crun)
command -v systemd-analyze >/dev/null || missing+=(systemd)
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
if ! { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null 2>&1; then
    printf 'error: cannot install %s\nhint: install them by hand, then run make again\n' "${missing[*]}" >&2
    exit 1
fi
