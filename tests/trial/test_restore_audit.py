"""The restored state is compared with the digests in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.checkpoint.manifest_fields import AUDIT_FILE
from detcore.checkpoint.restore_audit import audited, check_restored
from detcore.errors import InexactResumeError

STATE = {
    "random.numpy": np.arange(4),
    "gradient.weight": np.ones(2),
    "model.weight": np.zeros((2, 3), np.float32),
    "optimizer.exp_avg": np.full(6, 0.5),
}


class Controller:
    def __init__(self, **changes: Any) -> None:
        self.state = {**STATE, **{name.replace("__", "."): v for name, v in changes.items()}}

    def state_tensors(self) -> dict[str, Any]:
        return {name: value for name, value in self.state.items() if value is not None}


def save(folder: Path) -> None:
    assert audited(Controller(), lambda path: None)(folder) is None
    assert (folder / AUDIT_FILE).exists()


@pytest.mark.parametrize("changes", [{}, {"gradient__weight": None}])
def test_equal_state_passes(tmp_path: Path, changes: Any) -> None:
    save(tmp_path)
    check_restored(Controller(**changes), tmp_path, reaction="fail")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer__exp_avg": np.zeros(6)}, r"optimizer\.exp_avg was saved and not restored"),
        ({"random__numpy": np.arange(1, 5)}, r"random\.numpy was saved and not restored"),
        (
            {"optimizer__exp_avg": None},
            r"optimizer\.exp_avg was saved and not restored: it is missing",
        ),
        ({"scheduler": np.ones(1)}, "scheduler exists now and was not saved"),
        (
            {"model__weight": np.zeros((3, 2), np.float32)},
            r"saved as float32 \[2, 3\] and is float32 \[3, 2\] now",
        ),
        ({"model__weight": np.zeros((2, 3))}, r"is float64 \[2, 3\] now"),
        ({f"part{i}": np.ones(1) for i in range(8)}, "and 3 more parts"),
    ],
)
def test_differing_part_is_named(tmp_path: Path, changes: Any, message: str) -> None:
    save(tmp_path)
    for reaction in ("warn", "fail"):
        with pytest.raises(InexactResumeError, match=message):
            check_restored(Controller(**changes), tmp_path, reaction=reaction)
    check_restored(Controller(**changes), tmp_path, reaction="ignore")


def test_checkpoints_without_digests_are_accepted(tmp_path: Path) -> None:
    check_restored(Controller(), tmp_path, reaction="fail")
    check_restored(Controller(), None, reaction="fail")
    audited(object(), lambda path: None)(tmp_path)
    assert not list(tmp_path.iterdir())
