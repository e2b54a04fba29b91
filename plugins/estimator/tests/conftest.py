"""Prepares TensorFlow for the tests of this folder, once and before anything uses it.

Tests in this process run with TensorFlow's V2 behaviour as it is by default; those that go through
the ``detcore`` command run in workers, where ``EstimatorTrial`` switches it off.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Test files are imported one by one (importlib mode); this makes their helpers importable.
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
