"""Makes `agent_gateway`, the gateway of this room's tests, importable next to them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "backends"))
