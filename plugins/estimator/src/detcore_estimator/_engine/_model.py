"""Bundle a model function with the settings that its graphs and sessions need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from detcore_estimator._run_specs import WarmStartSettings
from detcore_estimator._tf import tf1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """State shared by training, evaluation and prediction of one estimator.

    Attributes:
        model_fn: Called as ``(features, labels, mode, config)``; returns a checked spec.
        model_dir: Folder of the checkpoints and event files.
        params: Hyperparameters, for input functions.
        config: The run configuration.
        warm_start: Where variables begin when `model_dir` has no checkpoint, or None.
    """

    model_fn: Callable[..., Any]
    model_dir: str
    params: Mapping[str, Any]
    config: Any
    warm_start: WarmStartSettings | None

    def warm_start_variables(self) -> None:
        """Let the variables of the default graph begin with the values of another model."""
        if self.warm_start is not None:
            tf1.train.warm_start(*self.warm_start)
