"""Seeded faults in PyTorch trials with several tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from faults import list_torch_batches
from found_faults import MODES, check_faults

NUM_STEPS = 1000
# Each of the eight kinds once, split into parts that fit the time limit of a test.
NUM_FAULTS, PIECE = 8, 2


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, NUM_FAULTS, PIECE))
@pytest.mark.parametrize("mode", MODES)
def test_faults_in_a_model_of_three_layers_are_found(
    mode: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)  # the processes are forked
    batches = list_torch_batches(NUM_STEPS)
    check_faults(batches, mode, range(first, first + PIECE), tmp_path, is_torch=True)
