"""The restored state is compared with the digests in the checkpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.checkpoint.manifest_fields import AUDIT_FILE
from detcore.checkpoint.restore_audit import audited, check_restored, read_audit
from detcore.data import StepDigests, digest_array
from detcore.errors import InexactResumeError
from detcore.trial import read_values

STATE: dict[str, Any] = {
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


class LiveController(Controller):
    """With flags and attributes beside its tensors."""

    def __init__(self, **live: Any) -> None:
        super().__init__()
        self.live = live

    def live_state(self) -> dict[str, Any]:
        return self.live


def save(folder: Path, controller: Controller | None = None) -> None:
    assert audited(controller or Controller(), lambda path: None)(folder) is None
    assert (folder / AUDIT_FILE).exists()


@pytest.mark.parametrize("changes", [{}, {"gradient__weight": None}])
def test_equal_state_passes(tmp_path: Path, changes: Any) -> None:
    save(tmp_path)
    check_restored(Controller(**changes), read_audit(tmp_path), reaction="fail")


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
        ({"model__weight": np.zeros((3, 2), np.float32).T}, r"strides \[\], and has \[\[4, 8\]\]"),
        ({f"part{i}": np.ones(1) for i in range(8)}, "and 3 more parts"),
    ],
)
def test_differing_part_is_named(tmp_path: Path, changes: Any, message: str) -> None:
    save(tmp_path)
    for reaction in ("warn", "fail"):
        with pytest.raises(InexactResumeError, match=message):
            check_restored(Controller(**changes), read_audit(tmp_path), reaction=reaction)
    check_restored(Controller(**changes), read_audit(tmp_path), reaction="ignore")


def test_checkpoints_without_digests_are_accepted(tmp_path: Path) -> None:
    check_restored(Controller(), read_audit(tmp_path), reaction="fail")
    check_restored(Controller(), None, reaction="fail")
    audited(object(), lambda path: None)(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ({"wait": 0}, "wait was saved and not restored: it was 3 and is 0"),
        ({"wait": 3.0}, r"wait was saved and not restored: it was 3 and is 3\.0"),
        ({"wait": 3, "text": "x" * 200}, "text was saved and not restored: its values differ"),
        ({}, "wait was saved and not restored: it is missing"),
    ],
)
def test_differing_attribute_is_named(tmp_path: Path, live: dict[str, Any], message: str) -> None:
    save(tmp_path, LiveController(wait=3, text="y" * 200))
    with pytest.raises(InexactResumeError, match=message):
        check_restored(
            LiveController(**{"text": "y" * 200, **live}), read_audit(tmp_path), reaction="warn"
        )


def test_attribute_that_only_the_restore_changes_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, LiveController(wait=3))
    check_restored(LiveController(wait=3, restores=1), read_audit(tmp_path), reaction="fail")


def test_unsaved_part_is_an_error_only_if_configured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, LiveController(stream=None))
    check_restored(LiveController(), read_audit(tmp_path), reaction="warn")
    assert "have their initial values now:\n  stream\n" in caplog.text
    with pytest.raises(InexactResumeError, match="stream"):
        check_restored(LiveController(), read_audit(tmp_path), reaction="fail")


def test_digests_of_the_check_are_those_of_the_first_step(tmp_path: Path) -> None:
    save(tmp_path)
    digests = check_restored(Controller(), read_audit(tmp_path), reaction="fail")
    assert digests == {name: digest_array(value) for name, value in STATE.items()}
    for name, known in (("read", None), ("known", digests)):
        with contextlib.closing(
            StepDigests(tmp_path / f"{name}.bin", run_id=1, start_step=5)
        ) as steps:
            steps.watch(Controller().state_tensors, known)
            steps.log(6, [1])
    assert (tmp_path / "read.bin").read_bytes() == (tmp_path / "known.bin").read_bytes()


def test_values_of_objects_are_read_by_path() -> None:
    class Helper:
        def __init__(self) -> None:
            self.count = 1
            self.rows = [np.zeros(2), {"lr": 0.1, 3: (1, 2)}]
            self.me = self
            self.names = {"b", "a"}
            self.code = print
            self.generator = np.random.default_rng(1)

    values = read_values(Helper(), "trial.helper")
    names = [name for name in values if "generator" not in name]
    assert names == [
        "trial.helper.count", "trial.helper.rows[0]", "trial.helper.rows[1]['lr']",
        "trial.helper.rows[1][3]", "trial.helper.names",
    ]  # fmt: skip
    assert values["trial.helper.names"] == """["'a'", "'b'"]"""
    assert any("generator['state']" in name for name in values)
