"""Reported values are recorded unchanged, or refused with their name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore import core
from detcore.core import EarlyExitReason, TensorboardMode
from detcore.errors import ContextStateError, MetricError

Open = Callable[..., core.Context]


def test_metrics_are_recorded(alone: Open, home: Any) -> None:
    nan, inf = float("nan"), float("inf")
    with alone() as context:
        context.train.report_training_metrics(
            10,
            {"loss": nan, "up": inf, "down": -inf, "count": 3, "flag": True},
            [{"loss": 0.5}, {"loss": nan}],
        )
        context.train.report_validation_metrics(np.int32(10), {"acc": np.float32(0.25)})
        info = context.info
    assert info is not None
    with home.database() as database:
        (training,) = database.metrics(info.trial_id, "training")
        (validation,) = database.metrics(info.trial_id, "validation")
    assert math.isnan(training.metrics.pop("loss"))
    assert training.metrics == {"up": inf, "down": -inf, "count": 3, "flag": 1.0}
    assert training.batch_metrics[0] == {"loss": 0.5}
    assert math.isnan(training.batch_metrics[1]["loss"])
    assert (validation.steps_completed, validation.metrics) == (10, {"acc": 0.25})


class Tensor:
    """A value like those of frameworks: a shape, and a number where it has no axes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __float__(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int8(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (Tensor(()), 2.5),
        (2**70, 2**70),
    ],
)
def test_framework_scalars_are_accepted(value: Any, expected: float) -> None:
    from detcore.core.metric_values import clean_metrics

    cleaned = clean_metrics({"x": value}, "training")["x"]
    assert cleaned == expected
    assert type(cleaned) in (int, float)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": None}, r"training metric 'loss' is None.*\n.*float\('nan'\)"),
        ({"ok": 1.0, "acc": [1, 2]}, "training metric 'acc' is a list, not a single number"),
        ({"acc": np.zeros((2, 3))}, r"'acc' is a ndarray of shape \(2, 3\)"),
        ({"acc": np.zeros(1)}, r"'acc' is a ndarray of shape \(1,\)"),
        ({"acc": Tensor((4,))}, r"'acc' is a Tensor of shape \(4,\)"),
        ({"text": "0.5"}, "'text' is a str"),
        ({"raw": b"0.5"}, "'raw' is a bytes"),
        ({"complex": 1j}, "'complex' is a complex"),
        ({"product": 10**400}, "'product' is larger than any float"),
        ({3: 1.0}, "has a name that is a int"),
        ([("loss", 1)], "training metrics are a list"),
    ],
)
def test_non_numbers_are_refused(alone: Open, metrics: Any, message: str) -> None:
    with alone() as context:
        with pytest.raises(MetricError, match=message):
            context.train.report_training_metrics(1, metrics)
        with pytest.raises(MetricError, match=message.replace("training", "validation")):
            context.train.report_validation_metrics(1, metrics)
        with pytest.raises(MetricError, match=r"batch_metrics\[1\]"):
            context.train.report_training_metrics(1, {"loss": 1.0}, [{"loss": 1.0}, metrics])


def test_metric_name_may_have_surrogates(alone: Open) -> None:
    with alone() as context:
        context.train.report_validation_metrics(1, {"half \ud800": 1.0})


@pytest.mark.parametrize("steps", [-1, 1.5, None, "3", True, 2**63])
def test_invalid_steps_are_refused(alone: Open, steps: Any) -> None:
    with alone() as context, pytest.raises(MetricError, match="steps_completed is"):
        context.train.report_training_metrics(steps, {"loss": 1.0})


SEARCH = {"searcher": {"metric": "loss", "smaller_is_better": True}}


@pytest.mark.parametrize("told", [{"smaller_is_better": True}, {"smaller_is_better": False}, {}])
def test_best_validation_follows_reports(managed: Any, told: dict[str, bool]) -> None:
    smaller = told.get("smaller_is_better", True)
    context, _ = managed({"searcher": {"metric": "loss", **told}})
    with context:
        best = context.train.get_experiment_best_validation
        assert best() is None
        for step, value in enumerate([3.0, float("nan"), 1.0, 2.0]):
            context.train.report_validation_metrics(step, {"loss": value, "other": -9})
        assert best() == (1.0 if smaller else 3.0)
        context.train.report_validation_metrics(9, {"other": 1})
        assert best() == (1.0 if smaller else 3.0)


def test_best_validation_includes_other_trials(managed: Any, home: Any) -> None:
    from detcore.records import MetricRecord

    context, info = managed(SEARCH)
    with home.database() as database:
        other = database.create_trial(experiment_id=info.experiment_id, hparams={}, seed=1)
        run_id = database.start_run(other)
        database.add_metrics(
            [
                MetricRecord(
                    trial_id=other, run_id=run_id, kind="validation", steps_completed=1,
                    metrics={"loss": 0.5},
                )
            ]
        )  # fmt: skip
    with context:
        context.train.report_validation_metrics(1, {"loss": 0.75})
        assert context.train.get_experiment_best_validation() == 0.5


def test_resumed_trial_ignores_lost_reports(managed: Any) -> None:
    """A killed run reached step 3; the next run resumes from the checkpoint at step 2."""
    context, _ = managed(SEARCH)
    with context:
        for step, value in ((1, 5.0), (2, 4.0), (3, 1.0)):
            context.train.report_validation_metrics(step, {"loss": value})
    resumed, _ = managed(SEARCH, steps_completed=2)
    with resumed:
        assert resumed.train.get_experiment_best_validation() == 4.0


def test_best_validation_requires_a_metric(alone: Open) -> None:
    with alone() as context:
        context.train.report_validation_metrics(1, {"loss": 1.0})
        assert context.train.get_experiment_best_validation() is None


def test_first_early_exit_is_kept(alone: Open) -> None:
    with alone() as context:
        context.train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)
        context.train.report_early_exit(EarlyExitReason.INVALID_HP)
        assert context.train.early_exit_reason is EarlyExitReason.USER_REQUESTED_STOP


def test_event_files_are_copied_on_request(alone: Open, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with alone(tensorboard_mode=TensorboardMode.MANUAL, checkpoint_storage=str(root)) as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
        folder = context.train.get_tensorboard_path()
        assert list(folder.iterdir()) == []  # detcore writes no files in MANUAL mode
        (folder / "sub").mkdir()
        (folder / "sub" / "events").write_text("1")
        (folder / "other").write_text("2")
        context.train.upload_tensorboard_files(
            lambda path: path.name == "events",
            lambda path, rank: path.with_name(f"{path.name}#{rank}"),
        )
        info = context.info
        assert info is not None
    copies = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    prefix = f"tensorboard/experiment/{info.experiment_id}/trial/{info.trial_id}"
    assert copies == [f"{prefix}/sub/events#0"]


def test_auto_mode_refuses_upload(alone: Open) -> None:
    with alone() as context, pytest.raises(ContextStateError, match=r"TensorboardMode.MANUAL"):
        context.train.upload_tensorboard_files()
