"""A model function with everything that its graphs and sessions need."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from detcore_estimator._run_specs import WarmStartSettings
from detcore_estimator._tf import tf, tf1

__all__ = ["Model"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What training, evaluation and prediction of one estimator share.

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

    @contextlib.contextmanager
    def building(self) -> Iterator[Any]:
        """Yield a new graph with a seed and a global step, as the default graph."""
        graph = tf.Graph()
        with graph.as_default(), graph.device(self.config.device_fn):
            tf1.set_random_seed(self.config.tf_random_seed)
            tf1.train.create_global_step()
            yield graph

    def warm_start_variables(self) -> None:
        """Let the variables of the default graph begin with the values of another model."""
        if self.warm_start is not None:
            tf1.train.warm_start(*self.warm_start)
