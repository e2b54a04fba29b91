"""Shared fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

# Test files are imported one by one (importlib mode); this makes `faults` importable from them.
sys.path.insert(0, str(Path(__file__).parent))
