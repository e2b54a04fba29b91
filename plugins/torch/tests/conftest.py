"""Shared fixtures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test files are imported one by one (importlib mode); this makes `_lab` importable from them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put PyTorch's compiler cache into a temporary directory, and disable network access."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Prepare this process like a worker, once and before any computation."""
    from detcore.trial import PrepareOptions
    from detcore_torch.pytorch_controller import prepare_worker

    prepare_worker(PrepareOptions(seed=11))
