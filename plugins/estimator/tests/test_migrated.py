"""A trial class written for Determined, migrated, is one of this plugin's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from detcore_determined.migrate import migrate_file
from detcore_estimator import EstimatorTrial, MetricReducer, RunHook

MODEL_DEF = """\
from typing import Any, Dict, List

import determined
import determined.estimator
import numpy as np
import tensorflow as tf
from determined import estimator
from determined.estimator import EstimatorTrial, EstimatorTrialContext, ServingInputReceiverFn


class Mean(estimator.MetricReducer):
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def accumulate(self, metric: Any) -> Any:
        self.sum, self.count = self.sum + float(np.sum(metric)), self.count + np.size(metric)
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics: List[Any]) -> float:
        sums, counts = zip(*per_slot_metrics)
        return sum(sums) / sum(counts)


class Note(determined.estimator.RunHook):
    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        pass


class LineTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        raise determined.InvalidHP("none fits")

    def build_estimator(self) -> Any: ...
    def build_train_spec(self) -> Any: ...
    def build_validation_spec(self) -> Any: ...

    def build_serving_input_receiver_fns(self) -> Dict[str, ServingInputReceiverFn]:
        return {}
"""


def test_a_migrated_trial_imports(tmp_path: Path) -> None:
    path = tmp_path / "line_model_def.py"
    path.write_text(MODEL_DEF)
    report = migrate_file(path)
    assert report.is_changed
    assert report.findings == ()
    assert "determined" not in path.read_text()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.LineTrial, EstimatorTrial)
    assert issubclass(module.Mean, MetricReducer)
    assert issubclass(module.Note, RunHook)
    reducer = module.Mean()
    assert reducer.cross_slot_reduce([reducer.accumulate([1.0, 2.0]), (3.0, 1)]) == 2.0
