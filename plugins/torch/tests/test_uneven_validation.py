"""Validation metrics of scripts, for any number of workers: 17 records, in batches of 8."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from _campaign import FAMILIES
from _killed_scripts import Script

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["trainer", "lightning", "accelerate"])
def test_metrics_do_not_depend_on_the_number_of_workers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_workers.py` has the same of `PyTorchTrial`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    importlib.import_module(FAMILIES[family])
    found = []
    for ranks in (1, 2, 3):
        arguments = ["--rate=0", f"--ranks={ranks}"]
        script = Script(SCRIPTS / f"{family}_text.py", tmp_path / str(ranks), arguments, ranks)
        assert script.run() == 0, script.output()
        found.append([metrics for _, metrics in script.metrics("validation")])
    first = found[0][0]
    assert first
    for each in (metrics for of_ranks in found for metrics in of_ranks):
        assert each == pytest.approx(first, rel=1e-6)
