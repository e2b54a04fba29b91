"""Define exporters, which decide when to write SavedModels and which SavedModels to keep."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidModelError, MetricError
from detcore_estimator.graph.model_fn import parameter_names
from detcore_estimator.specs.argument_checks import checked_count, wrong_type
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

_LOSS = "loss"


class Exporter(abc.ABC):
    """Decides after a validation whether to write a SavedModel; for ``EvalSpec.exporters``."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the directory below ``export/``; unique among the exporters of an `EvalSpec`."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | bytes | None:
        """Write a SavedModel, or decide not to.

        Args:
            estimator: The estimator, of detcore or ``tf.estimator``.
            export_path: Directory for the exports of this exporter.
            checkpoint_path: The checkpoint that was validated.
            eval_result: The metrics of the validation.
            is_the_final_export: Whether training has ended.

        Returns:
            Path of the SavedModel, or None if it was not written.
        """


class _SavedModelExporter(Exporter):
    """Behaviour that all exporters of this module share."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise wrong_type("the exporter's name", name, "a string")
        if not callable(serving_input_receiver_fn):
            raise wrong_type("serving_input_receiver_fn", serving_input_receiver_fn, "a function")
        self._name = name
        self._function = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text

    @property
    def name(self) -> str:
        return self._name

    def _write_export(self, estimator: Any, export_path: str, checkpoint_path: str) -> str | bytes:
        path: str | bytes = estimator.export_saved_model(
            export_path,
            self._function,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        return path


class FinalExporter(_SavedModelExporter):
    """Writes one SavedModel, when training has ended.

    Args:
        name: Name of the exporter and of its directory.
        serving_input_receiver_fn: Returns a `ServingInputReceiver`.
        assets_extra: Files to add; see `Estimator.export_saved_model`.
        as_text: Whether to write ``saved_model.pbtxt``.
    """

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | bytes | None:
        if not is_the_final_export:
            return None
        return self._write_export(estimator, export_path, checkpoint_path)


class LatestExporter(_SavedModelExporter):
    """Writes a SavedModel after each validation, and removes old exports.

    Args:
        name: Name of the exporter and of its directory.
        serving_input_receiver_fn: Returns a `ServingInputReceiver`.
        assets_extra: Files to add; see `Estimator.export_saved_model`.
        as_text: Whether to write ``saved_model.pbtxt``.
        exports_to_keep: Number of exports to keep, > 0; None = all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._exports_to_keep = checked_count("exports_to_keep", exports_to_keep)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | bytes | None:
        path = self._write_export(estimator, export_path, checkpoint_path)
        _remove_old(export_path, self._exports_to_keep)
        return path


def loss_is_smaller(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    """Whether the current evaluation has a smaller ``loss`` than the best evaluation so far.

    Raises:
        MetricError: If an evaluation has no ``loss``. It is a ``ValueError``.
    """
    for name, result in (("best", best_eval_result), ("current", current_eval_result)):
        if not result or _LOSS not in result:
            raise MetricError(
                f"the {name} evaluation has no metric 'loss' to compare: {result!r}.\n"
                "Pass a compare_fn to BestExporter that uses an existing metric."
            )
    return bool(best_eval_result[_LOSS] > current_eval_result[_LOSS])


class BestExporter(_SavedModelExporter):
    """Writes a SavedModel whenever a validation is better than all earlier validations.

    Earlier results are read from the event files of the evaluation, so comparisons continue after
    an interruption. The first result afterwards is not exported if it is worse than the previous
    best and exports exist.

    Args:
        name: Name of the exporter and of its directory.
        serving_input_receiver_fn: Returns a `ServingInputReceiver`.
        event_file_pattern: Pattern of the event files, below the estimator's ``model_dir``; None =
            ignore earlier results.
        compare_fn: Called with ``best_eval_result`` and ``current_eval_result``, dicts of metrics.
            Returns whether the current result is better.
        assets_extra: Files to add; see `Estimator.export_saved_model`.
        as_text: Whether to write ``saved_model.pbtxt``.
        exports_to_keep: Number of exports to keep, > 0; None = all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_is_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._compare = _checked_compare(compare_fn)
        self._pattern = event_file_pattern
        self._exports_to_keep = checked_count("exports_to_keep", exports_to_keep)
        self._model_dir: str | None = None
        self._best: Mapping[str, Any] | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | bytes | None:
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            is_better = self._is_best_of_all(estimator.model_dir, export_path, eval_result)
        else:
            is_better = self._best is None or self._is_better(self._best, eval_result)
        if not is_better:
            return None
        self._best = dict(eval_result)
        path = self._write_export(estimator, export_path, checkpoint_path)
        _remove_old(export_path, self._exports_to_keep)
        return path

    def _is_best_of_all(
        self, model_dir: str, export_path: str, eval_result: Mapping[str, Any]
    ) -> bool:
        """Whether to export the first result in this process."""
        if self._pattern is not None:
            self._best = self._best_of_files(os.path.join(model_dir, self._pattern))
        if self._best is None or not _list_exports(export_path):
            return True
        # The files also contain this result, in single precision. It must not be worse.
        return not self._is_better(_in_single_precision(eval_result), self._best)

    def _best_of_files(self, pattern: str) -> Mapping[str, Any] | None:
        best: Mapping[str, Any] | None = None
        for path in sorted(tf.io.gfile.glob(pattern)):
            for event in tf1.train.summary_iterator(path):
                result = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if result and (best is None or self._is_better(best, result)):
                    best = result
        return best

    def _is_better(self, best: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
        return bool(self._compare(best_eval_result=best, current_eval_result=current))


def _checked_compare(function: Any) -> Callable[..., bool]:
    if not callable(function):
        raise wrong_type("compare_fn", function, "a function")
    names = parameter_names(function)
    if names != {"best_eval_result", "current_eval_result"}:
        raise InvalidModelError(
            f"compare_fn has the arguments: {', '.join(sorted(names)) or 'none'}.\n"
            "It must accept best_eval_result and current_eval_result, by name."
        )
    checked: Callable[..., bool] = function
    return checked


def _in_single_precision(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(np.float32(value)) if isinstance(value, (float, np.floating)) else value
        for name, value in result.items()
    }


def _list_exports(folder: str) -> list[str]:
    """Return the names of the exports in a directory, oldest first."""
    if not tf.io.gfile.isdir(folder):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    return sorted((name for name in names if name.isdigit()), key=int)


def _remove_old(folder: str, count: int | None) -> None:
    for name in _list_exports(folder)[: -count if count else 0]:
        path = os.path.join(folder, name)
        tf.io.gfile.rmtree(path)
        _logger.info("removed the old export %s", path)
