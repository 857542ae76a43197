"""Makes `execution_play`, the player of this room's tests, importable next to them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
