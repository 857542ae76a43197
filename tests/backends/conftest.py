import sys
from pathlib import Path

# Test modules are imported one by one, so their neighbours must be found by name.
sys.path.append(str(Path(__file__).parent))
