"""Prepare TensorFlow for the tests of this directory, before the tests import it.

Tests in this process use TensorFlow's default V2 behaviour. Tests of the ``detcore`` command run
trials in workers, where ``EstimatorTrial`` disables it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Pytest's importlib mode does not make the helper modules importable.
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
