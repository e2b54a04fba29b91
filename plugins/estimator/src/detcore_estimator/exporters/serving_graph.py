"""Write a model as a SavedModel, for serving."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from detcore.errors import (
    DataError,
    InvalidModelError,
    StorageError,
    UnsafePathError,
)
from detcore_estimator.graph.model_fn import model_graph
from detcore_estimator.graph.scaffolds import build_saver, own_saver
from detcore_estimator.specs.argument_checks import wrong_type
from detcore_estimator.specs.estimator_spec import ModeKeys, check_model_fn_spec
from detcore_estimator.tensorflow_versions import quiet_deprecations, tf, tf1

_logger = logging.getLogger("detcore.estimator")
# Graph collections that a SavedModel's builder fills but does not clear.
_OF_BUILDER = (tf1.saved_model.MAIN_OP_KEY, tf1.saved_model.ASSETS_KEY)
_MAX_NAMES = 100
_DEFAULT = "serving_default"


class ServingGraph:
    """The PREDICT graph of a model with one serving input, built once and written many times.

    Args:
        model_fn: Called as ``(features, None, "infer", config)``. Returns an `EstimatorSpec` of
            detcore or ``tf.estimator``.
        serving_input_receiver_fn: Returns a `ServingInputReceiver` or a
            `TensorServingInputReceiver` of detcore or ``tf.estimator``.
        config: The run configuration, for its seed, its session configuration and `model_fn`.

    Attributes:
        graph: The graph.
        has_own_saver: Whether the user's code created a saver for the graph.

    Raises:
        InvalidModelError: If a function returns another type, or the model has no output to serve.
            It is a ``ValueError``.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        serving_input_receiver_fn: Callable[[], Any],
        *,
        config: Any,
    ) -> None:
        self._session_config = config.session_config
        with model_graph(config) as self.graph:
            receiver = check_receiver(serving_input_receiver_fn())
            spec = model_fn(receiver.features, None, ModeKeys.PREDICT, config)
            check_model_fn_spec(spec, ModeKeys.PREDICT)
            self._signatures = make_signatures(receiver, spec.export_outputs)
            scaffold = spec.scaffold
            self.has_own_saver = own_saver(self.graph, scaffold) is not None
            self._init_op = scaffold.local_init_op
            if self._init_op is None:
                self._init_op = tf1.train.Scaffold.default_local_init_op()
            if isinstance(scaffold.saver, tf.train.Checkpoint):
                self._saver: Any = _ObjectSaver(scaffold.saver)
            else:
                self._saver = build_saver(self.graph, scaffold)

    def write(
        self,
        export_dir_base: str | os.PathLike[str],
        restore: Callable[[Any, Any], None],
        *,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> str:
        """Write the model with the current values of its variables.

        The directory gets its name when it is complete. After a crash, a directory whose name
        begins with ``temp-`` may remain, which TensorFlow Serving ignores.

        Args:
            export_dir_base: Directory for the exported models, created if missing.
            restore: Called with the session and the model's saver to restore all variables.
            assets_extra: Files to add, as a dict from a path below ``assets.extra`` to a file path.
            as_text: Whether to write ``saved_model.pbtxt`` instead of ``saved_model.pb``.

        Returns:
            Path of the new directory, ``<export_dir_base>/<unix seconds>``. The number is higher
            than those of all existing exports.

        Raises:
            UnsafePathError: If a file would be written outside ``assets.extra``.
            DataError: If a file to add does not exist.
        """
        extra = _checked_assets(assets_extra)
        base = os.fspath(export_dir_base)
        folder = os.path.join(base, f"temp-{int(time.time())}-{uuid.uuid4().hex[:8]}")
        try:
            with (
                self.graph.as_default(),
                tf1.Session(graph=self.graph, config=self._session_config) as session,
            ):
                restore(session, self._saver)
                self._build_saved_model(session, folder, as_text)
            for target, source in extra.items():
                path = os.path.join(folder, "assets.extra", target)
                tf.io.gfile.makedirs(os.path.dirname(path))
                tf.io.gfile.copy(source, path)
            return _rename_export(folder, base)
        except BaseException:
            if tf.io.gfile.exists(folder):
                tf.io.gfile.rmtree(folder)
            raise

    def _build_saved_model(self, session: Any, folder: str, as_text: bool) -> None:
        for key in _OF_BUILDER:
            self.graph.clear_collection(key)
        builder = tf1.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(
            session,
            tags=[tf1.saved_model.SERVING],
            signature_def_map=self._signatures,
            assets_collection=self.graph.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=self._init_op,
            saver=self._saver,
            strip_default_attrs=True,
        )
        builder.save(as_text)


def _rename_export(folder: str, base: str) -> str:
    """Name a complete directory after the current second, or after a later second if necessary.

    The newest export must have the highest number. Names of removed exports are free, so the first
    free name would not be sufficient.
    """
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(base))
    first = max([int(time.time()), *(int(name) + 1 for name in names if name.isdigit())])
    for seconds in range(first, first + _MAX_NAMES):
        target = os.path.join(base, str(seconds))
        try:
            tf.io.gfile.rename(folder, target)
        except (tf.errors.AlreadyExistsError, tf.errors.FailedPreconditionError):
            # Another process has used the name. A directory with files is never replaced.
            continue
        _logger.debug("exported the model to %s", target)
        return target
    raise StorageError(
        f"no name from {first} to {first + _MAX_NAMES} was free in {base}, because other processes "
        "export there concurrently"
    )


def _checked_assets(assets: Mapping[str, str] | None) -> dict[str, str]:
    """Return the files to add, checked before the export starts."""
    if assets is None:
        return {}
    if not isinstance(assets, Mapping):
        raise wrong_type("assets_extra", assets, "a dict from a path to a file's path")
    for target, source in assets.items():
        if not isinstance(target, str):
            raise wrong_type("each key of assets_extra", target, "a string")
        path = PurePosixPath(target)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise UnsafePathError(
                f"assets_extra has the path {target!r}, which is not below assets.extra.\n"
                "Use a relative path without '..' that ends with the file name."
            )
        if not tf.io.gfile.exists(source) or tf.io.gfile.isdir(source):
            raise DataError(
                f"assets_extra has {source!r} for {target!r}, which is not an existing file.\n"
                "Nothing was exported; check the path."
            )
    return dict(assets)


class _ObjectSaver:
    """Reads object-based checkpoints into a graph, and writes variables under their names.

    Used for a scaffold whose saver is a ``tf.train.Checkpoint``. Its checkpoints contain object
    names, but a SavedModel needs the names of the graph's variables.

    Args:
        checkpoint: The ``tf.train.Checkpoint``.
    """

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint
        self._by_name = tf1.train.Saver(sharded=True)

    def restore(self, session: Any, path: str) -> None:
        """Restore the variables from an object-based checkpoint."""
        status = self._checkpoint.read(path)
        status.assert_existing_objects_matched().run_restore_ops(session)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Write the variables by name; see ``tf.compat.v1.train.Saver.save``."""
        return self._by_name.save(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._by_name, name)


def make_signatures(receiver: Any, export_outputs: Any) -> dict[str, Any]:
    """Return the ``SignatureDef`` of each matching pair of input and output.

    Other pairs, such as a classification without serialized records, are logged and left out.

    Args:
        receiver: A serving input receiver, of detcore or ``tf.estimator``.
        export_outputs: The ``export_outputs`` of the model's `EstimatorSpec`.

    Returns:
        Signatures by name: the name of the output, or ``"input:output"`` for alternative inputs.

    Raises:
        InvalidModelError: If the model has no outputs, or no pair matches. It is a ``ValueError``.
    """
    if not isinstance(export_outputs, Mapping) or not export_outputs:
        raise InvalidModelError(
            f"the EstimatorSpec has empty export_outputs ({export_outputs!r}), so the model cannot "
            "be served.\n"
            "Leave export_outputs out to serve the predictions, or add at least one output."
        )
    inputs = {"": receiver.receiver_tensors, **(receiver.receiver_tensors_alternatives or {})}
    signatures: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for input_name, tensors in inputs.items():
        for output_name, output in export_outputs.items():
            name = f"{input_name}:{output_name}" if input_name else str(output_name)
            try:
                signatures[name] = _make_signature(tensors, output)
            except ValueError as error:
                left_out[name] = str(error).splitlines()[0]
    _report_signatures(signatures, left_out)
    return signatures


def _make_signature(tensors: Any, output: Any) -> Any:
    if not isinstance(tensors, Mapping):
        tensors = {"input": tensors}
    with quiet_deprecations():
        signature = output.as_signature_def(tensors)
    if not tf1.saved_model.is_valid_signature(signature):
        raise InvalidModelError(
            f"its inputs and outputs have types that the method {signature.method_name} of "
            "TensorFlow Serving does not accept"
        )
    return signature


def _report_signatures(signatures: Mapping[str, Any], left_out: Mapping[str, str]) -> None:
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in left_out.items())
    if not signatures:
        raise InvalidModelError(
            f"no output of the model can be served with this serving input:{reasons}\n"
            "Change export_outputs or the serving_input_receiver_fn so that at least one output "
            "fits. A PredictOutput accepts any input."
        )
    if left_out:
        _logger.info("signatures that the exported model does not have:%s", reasons)
    if _DEFAULT not in signatures:
        _logger.warning(
            "the exported model has no default signature, only %s; a request must name one%s",
            ", ".join(signatures),
            reasons,
        )


def check_receiver(receiver: Any) -> Any:
    """Return the result of a ``serving_input_receiver_fn``, checked."""
    if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
        raise wrong_type(
            "the result of serving_input_receiver_fn",
            receiver,
            "a ServingInputReceiver or TensorServingInputReceiver",
        )
    return receiver
