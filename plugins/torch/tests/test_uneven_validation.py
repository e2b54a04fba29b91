"""Validation metrics of scripts for any number of workers, with 17 records in batches of 8."""

from __future__ import annotations

from pathlib import Path

import pytest
from _killed_scripts import ADAPTERS, SCRIPTS, Script


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ADAPTERS)
def test_metrics_are_equal_for_any_worker_count(family: str, tmp_path: Path) -> None:
    """`test_workers.py` has the same test for `PyTorchTrial`."""
    results = []
    for ranks in (1, 2, 3):
        arguments = ["--task=text", "--rate=0", f"--ranks={ranks}"]
        script = Script(SCRIPTS / f"{family}_tasks.py", tmp_path / str(ranks), arguments, ranks)
        results.append([metrics for _, metrics in script.finish().metrics("validation")])
    first = results[0][0]
    assert first
    for item in (metrics for of_ranks in results for metrics in of_ranks):
        assert item == pytest.approx(first, rel=1e-6)
