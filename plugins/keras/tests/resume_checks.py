"""Compare small trials with trials that resumed from their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _fakes import (
    FakeClock,
    SmallTrial,
    assert_same,
    fingerprint,
    make_context,
    seed_everything,
)

from detcore_keras.keras_controller import KerasController

UNTIL = 24  # several epochs of 7 batches, and not a multiple of them
SAVE_EVERY = 6


def run_trial(
    tmp_path: Path,
    *,
    until: int,
    save_to: Path | None = None,
    resume: Path | None = None,
    step: int = 0,
    asynchronous: bool = False,
    **variant: Any,
) -> tuple[KerasController, FakeClock]:
    seed_everything()
    context = make_context(tmp_path, batch_size=variant.pop("batch_size", 8))
    kind = type("Trial", (SmallTrial,), variant)
    controller = KerasController(kind(context), context)
    if resume is not None:
        controller.restore(resume)
    clock = FakeClock(
        controller,
        until=until,
        unit=3,
        validate_every=6,
        save_every=SAVE_EVERY if save_to else 0,
        directory=save_to,
        start=step,
        asynchronous=asynchronous,
    )
    controller.run(clock)
    controller.close()
    return controller, clock


def check_resumes(tmp_path: Path, thorough: bool, **variant: Any) -> None:
    """Compare a run with runs resumed from checkpoints that were written during training."""
    uninterrupted, whole_clock = run_trial(tmp_path, until=UNTIL, **variant)
    run_trial(tmp_path, until=14, save_to=tmp_path / "copied", asynchronous=True, **variant)
    if thorough:
        run_trial(tmp_path, until=14, save_to=tmp_path / "saved", **variant)
        assert_same_files(tmp_path / "saved", tmp_path / "copied")
    for step in (6, 12) if thorough else (12,):
        resumed, clock = run_trial(
            tmp_path, until=UNTIL, resume=tmp_path / "copied" / f"step-{step}", step=step, **variant
        )
        assert_same(fingerprint(uninterrupted), fingerprint(resumed))
        assert clock.validations == [v for v in whole_clock.validations if v[0] > step]
        assert clock.training == [t for t in whole_clock.training if t[0] > step]
        assert clock.batches == whole_clock.batches[step:]


def assert_same_files(one: Path, other: Path) -> None:
    """Check that files have the same bytes, except TensorFlow's, which name temporary files."""
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    assert names == {path.relative_to(other) for path in other.rglob("*") if path.is_file()}
    ours = {name for name in names if name.suffix in {".json", ".npz"}}
    assert {name.name for name in ours} >= {"weights.npz", "optimizer.npz", "state.npz"}
    for name in ours:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
