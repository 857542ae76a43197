"""Images that tests make: OCI image layouts of layers that they write entry by entry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = tuple[str, str | bytes, str]
"""Name, content or target, and kind: file, folder, symlink, link, device."""
KINDS = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
}
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
T = {"datatype": "FP32", "shape": [-1, 8]}
M = {"name": "six", "inputs": [{"name": "x", **T}], "outputs": [{"name": "y", **T}]}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        known = {"/v2": {"name": "boxed", "version": "1", "extensions": []}, "/v2/models/six": M}
        self.say(known.get(self.path, {}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v2/repository/index":
            return self.say([{"name": "six", "state": "READY"}])
        (x,) = body["inputs"]
        y = {**x, "name": "y", "data": [each + 6 for each in x["data"]]}
        self.say({"model_name": "six", "outputs": [y]})

    def say(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True

facts = open("/proc/self/status").read().split("\\n")
facts = dict(each.split(":", 1) for each in facts if ":" in each)
seen = {
    "caps": facts["CapBnd"].strip() + facts["CapEff"].strip(),
    "no_new_privs": facts["NoNewPrivs"].strip(),
    "seccomp": facts["Seccomp"].strip(),
    "uid": facts["Uid"].split()[0],
    "writes": [each for each in ("/x", "/etc/x", "/models/x", "/tmp/x", "/run/x") if writes(each)],
    "networks": sorted(os.listdir("/sys/class/net")),
    "processes": sorted(each for each in os.listdir("/proc") if each.isdigit()),
    "model": open("/models/weights").read() if os.path.exists("/models/weights") else "",
    "device": os.path.exists("/dev/fuse") or os.path.exists("/dev/net/tun"),
}
print("seen " + json.dumps(seen), flush=True)
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.serve_forever()
"""


def layer(*entries: Entry, ids: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, kind in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = KINDS[kind], 0o755, ids, ids
            data = content.encode() if isinstance(content, str) else content
            if kind in ("symlink", "link"):
                info.linkname = data.decode()
            info.size = len(data) if kind == "file" else 0
            archive.addfile(info, io.BytesIO(data) if kind == "file" else None)
    return buffer.getvalue()


class Layout:
    """A folder with one image."""

    def __init__(self, folder: Path, layers: Iterable[bytes], **config: Any) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        kind = "application/vnd.oci.image"
        self.layers = [
            self.add(gzip.compress(each), f"{kind}.layer.v1.tar+gzip") for each in layers
        ]
        about = {"architecture": ARCHITECTURE, "os": "linux", "config": config}
        self.config = self.add(json.dumps(about).encode(), f"{kind}.config.v1+json")
        manifest = {"schemaVersion": 2, "config": self.config, "layers": self.layers}
        self.manifest = self.add(json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
        self.index(self.manifest)

    def add(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def index(self, *manifests: dict[str, Any]) -> None:
        content = {"schemaVersion": 2, "manifests": manifests}
        (self.folder / "index.json").write_text(json.dumps(content))

    def blob(self, descriptor: dict[str, Any]) -> Path:
        digest: str = descriptor["digest"]
        return self.folder / "blobs" / digest.replace(":", "/")


def machine_entries() -> tuple[list[Entry], dict[str, str]]:
    """A root in which this machine's Python runs, and the mounts that it needs."""
    entries: list[Entry] = [("etc", "", "folder")]
    mounts: dict[str, str] = {}
    for name in ("usr", "bin", "lib", "lib64", "sbin"):
        path = Path("/", name)
        if path.is_symlink():
            entries.append((name, str(path.readlink()), "symlink"))
        elif path.is_dir():
            entries.append((name, "", "folder"))
            mounts[str(path)] = str(path)
    if not sys.base_prefix.startswith("/usr"):
        mounts[sys.base_prefix] = "/opt/python"
    return entries, mounts


def python_inside() -> str:
    name = f"bin/python3.{sys.version_info.minor}"
    prefix = sys.base_prefix if sys.base_prefix.startswith("/usr") else "/opt/python"
    return f"{prefix}/{name}"
