"""Prepare TensorFlow for the tests in this directory, before other code uses it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Test files are imported one by one (importlib mode). This makes `_fakes` importable.
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import pytest


@pytest.fixture(scope="session", autouse=True)
def _prepared() -> None:
    if find_spec("tensorflow") is None and "KERAS_BACKEND" not in os.environ:
        return  # only test_backends.py runs, whose processes choose a back end
    from detcore.trial import PrepareOptions
    from detcore_keras.worker_setup import prepare_worker

    prepare_worker(PrepareOptions(seed=11))


def pytest_configure(config: pytest.Config) -> None:
    # Keras 2.15 calls random.randint(1, 1e9). Keras 3 does not.
    config.addinivalue_line(
        "filterwarnings", "ignore:non-integer arguments to randrange:DeprecationWarning"
    )
    # Variables of Keras 3.15 on JAX and PyTorch, with NumPy 2.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept:DeprecationWarning"
    )
