"""Implement ``Estimator.predict``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detcore.errors import InvalidModelError
from detcore_estimator.engine.input_pipeline import Model, build_model
from detcore_estimator.engine.model_dir import make_restorer
from detcore_estimator.graph.hooked_session import HookedSession
from detcore_estimator.graph.model_fn import model_graph
from detcore_estimator.specs.estimator_spec import ModeKeys
from detcore_estimator.tensorflow_versions import tf

_logger = logging.getLogger("detcore.estimator")


def predict_with_model(
    estimator: Model,
    input_fn: Callable[..., Any],
    *,
    keys: Iterable[str] | None,
    hooks: Sequence[Any],
    checkpoint: str | None,
    is_single: bool,
) -> Iterator[Any]:
    """Yield the predictions of a model with the values of a checkpoint.

    Between two predictions, this function changes no default graph or session. Several generators
    can therefore take turns, and a caller may abandon a generator.

    Args:
        estimator: The estimator.
        input_fn: Returns the features.
        keys: Names of selected predictions; None = all.
        hooks: ``SessionRunHook`` objects.
        checkpoint: The checkpoint; None = warm-started variables.
        is_single: Whether to yield records rather than batches.
    """
    config = estimator.config
    with model_graph(config) as graph:
        inputs, spec = build_model(
            estimator, input_fn, ModeKeys.PREDICT, config=config, checkpoint=checkpoint
        )
        if not inputs.has_end:
            _logger.warning("input_fn returns plain tensors, so the predictions never end")
        predictions = _select_predictions(spec.predictions, keys)
        scaffold = spec.scaffold
        all_hooks = (*inputs.hooks, *hooks, *spec.prediction_hooks)
    with contextlib.closing(
        HookedSession(
            graph,
            scaffold=scaffold,
            hooks=all_hooks,
            config=config.session_config,
            restore=make_restorer(scaffold, checkpoint),
        )
    ) as hooked:
        for batch in _predict_batches(hooked, predictions):
            if is_single:
                yield from _split_records(batch)
            else:
                yield batch


def _predict_batches(hooked: HookedSession, predictions: Any) -> Iterator[Any]:
    run = hooked.make_step(predictions)
    while not hooked.should_stop:
        try:
            batch = run()
        except (tf.errors.OutOfRangeError, StopIteration):
            break
        yield batch
    hooked.end()


def _select_predictions(predictions: Any, keys: Iterable[str] | None) -> Any:
    selected_keys = [keys] if isinstance(keys, str) else list(keys or ())
    if not selected_keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise InvalidModelError(
            f"predict_keys={selected_keys!r} was passed, but the predictions of the EstimatorSpec "
            "are a single tensor without keys.\n"
            "Leave predict_keys out, or return a dict of predictions."
        )
    unknown = [key for key in selected_keys if key not in predictions]
    if unknown:
        raise InvalidModelError(
            f"predict_keys has {', '.join(map(repr, unknown))}, but the model predicts "
            f"{', '.join(map(repr, predictions))}"
        )
    return {key: value for key, value in predictions.items() if key in selected_keys}


def _split_records(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, Mapping):
        _check_batched("the predictions", batch)
        yield from batch
        return
    for name, values in batch.items():
        _check_batched(f"predictions[{name!r}]", values)
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidModelError(
            f"the predictions have different numbers of records in one batch: {lengths}.\n"
            "They can be split only if each has one row per record.\n"
            "Pass yield_single_examples=False to get whole batches, or choose predict_keys."
        )
    names = tuple(batch)
    for row in zip(*batch.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def _check_batched(place: str, values: Any) -> None:
    if np.ndim(values) == 0:
        raise InvalidModelError(
            f"{place} is a single value ({values!r}) for a whole batch, without a row per record.\n"
            "Pass yield_single_examples=False to get whole batches, or choose predict_keys."
        )
