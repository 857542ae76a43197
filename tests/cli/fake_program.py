"""Stands in for gateway and agent: `python fake_program.py MODULE`, settings in DIN_CONFIG_JSON.

As a gateway it answers /api/v1/gateway and /api/v1/nodes; FAKE_PROGRAM=refuse ends with an error as
a program of DIN does, =break as Python does, =vanish without a word; =stubborn ignores SIGTERM.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

module = sys.argv[1]
settings = json.loads(os.environ["DIN_CONFIG_JSON"])
mode = os.environ.get("FAKE_PROGRAM", "")
if mode == "refuse" or (mode == "refuse-node" and module == "din.agent"):
    print("error: the state directory is in use\nhint: give another", file=sys.stderr)
    sys.exit(7)
if mode in ("vanish", "break"):
    sys.exit("ModuleNotFoundError: no module named 'wires'\n" if mode == "break" else 1)
stop = threading.Event()
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
marks = Path(os.environ["HOME"]) / "joined"


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/api/v1/gateway":
            body = {"gateway_id": "g", "cluster": settings["cluster"], "version": "0.1.0",
                    "pid": os.getpid(), "state_path": "", "discovery_mode": "auto", "nodes": 0,
                    "models": 0}  # fmt: skip
        else:
            names = [marks.read_text()] if marks.exists() else []
            body = {"cluster": "", "gateway_id": "g", "discovery_mode": "auto", "items": [
                {"node_id": "n", "name": name, "status": "ready", "device_type": "x", "health": {},
                 "health_score": 1.0, "heartbeat_age_ms": 0, "memory_mib": 1,
                 "memory_mib_reserved": 0, "slices": []} for name in names]}  # fmt: skip
        encoded = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


if module == "din.agent":
    marks.write_text(settings["name"])
    stop.wait(60)
else:
    server = HTTPServer((settings["host"], settings["port"]), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stop.wait(60)
