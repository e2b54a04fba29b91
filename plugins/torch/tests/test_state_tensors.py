"""The state of a PyTorch trial as arrays, for step digests. `docs/data.md` runs whole trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from _lab import Lab, LineTrial

from detcore.data import StepDigests
from detcore_torch.state.state_digests import list_arrays


class Dropping(LineTrial):
    """With dropout, so that the generators are used."""

    def build_model(self) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))


def copied(lab: Lab) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in lab.controller.state_tensors().items()}


def test_digest_names_follow_computation_order() -> None:
    names = list(Lab(Dropping).train(1).controller.state_tensors())
    kinds = list(dict.fromkeys(name.partition(".")[0] for name in names))
    assert kinds == ["random", "model", "optimizer"]  # gradients were set to None
    assert names[:3] == ["random.python", "random.numpy", "random.torch"]
    assert "model.0.weight" in names
    assert "optimizer.param_groups[0]['lr']" in names


def test_digests_match_after_restore(tmp_path: Path) -> None:
    plain = Lab(Dropping).train(6)
    read = Lab(Dropping).train(3)
    state = copied(read)
    checkpoint = read.save(tmp_path / "checkpoint")
    restored = Lab(Dropping).restore(checkpoint)  # generators belong to the process
    assert copied(restored) == state
    assert copied(read.train(6)) == copied(plain)
    assert copied(plain) != state


def test_one_change_alters_one_digest(tmp_path: Path) -> None:
    digests = StepDigests(tmp_path / "digests-1.bin", run_id=1, start_step=0)
    batch = {"x": torch.arange(6.0).view(2, 3), "y": (torch.tensor([1, 2]), "text", 0.5, None)}
    digests.log(1, [4, 5], list_arrays(batch))
    digests.log(2, [4, 5], list_arrays({**batch, "x": batch["x"].clone()}))  # type: ignore[attr-defined]
    digests.log(3, [4, 5], list_arrays({**batch, "x": batch["x"] + 1}))  # type: ignore[operator]
    rows = digests._rows
    assert rows[1] == rows[2]
    assert rows[1][0] == rows[3][0]
    assert rows[1][1] != rows[3][1]


def test_dtypes_unknown_to_numpy_become_bytes() -> None:
    (array,) = list_arrays(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    assert array.dtype == np.uint8
    assert array.size == 4
