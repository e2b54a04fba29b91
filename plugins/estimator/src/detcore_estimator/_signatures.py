"""Build the signatures of an exported model: the outputs for each set of inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from detcore.errors import InvalidModelError
from detcore_estimator._arguments import wrong_type
from detcore_estimator._tf import quiet_deprecations, tf1

__all__ = ["checked_receiver", "signature_map"]

_logger = logging.getLogger("detcore.estimator")

_DEFAULT = "serving_default"
_FED = ("Placeholder", "PlaceholderV2")


def signature_map(receiver: Any, export_outputs: Any) -> dict[str, Any]:
    """Return the ``SignatureDef`` of each pair of an input and an output that fit each other.

    A pair that does not fit, such as a classification of anything but serialized records, is left
    out and named in the log.

    Args:
        receiver: A serving input receiver, ours or ``tf.estimator``'s.
        export_outputs: The ``export_outputs`` of the model's `EstimatorSpec`.

    Returns:
        Signatures by name: that of the output, or ``"input:output"`` for the other inputs.

    Raises:
        InvalidModelError: If there is nothing to export, or no pair fits. It is a ``ValueError``.
    """
    if not isinstance(export_outputs, Mapping) or not export_outputs:
        raise InvalidModelError(
            f"the EstimatorSpec has no export_outputs ({export_outputs!r}), so there is nothing "
            "to serve.\n"
            "Leave export_outputs out to serve the predictions, or name at least one output."
        )
    inputs = {"": receiver.receiver_tensors, **(receiver.receiver_tensors_alternatives or {})}
    signatures: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for input_name, tensors in inputs.items():
        for output_name, output in export_outputs.items():
            name = f"{input_name}:{output_name}" if input_name else str(output_name)
            try:
                signatures[name] = _signature(tensors, output)
            except ValueError as error:
                left_out[name] = str(error).splitlines()[0]
    _report(signatures, left_out)
    return signatures


def _signature(tensors: Any, output: Any) -> Any:
    if not isinstance(tensors, Mapping):
        tensors = {"input": tensors}
    with quiet_deprecations():
        signature = output.as_signature_def(tensors)
    if not tf1.saved_model.is_valid_signature(signature):
        raise InvalidModelError(
            f"its inputs and outputs have types that the method {signature.method_name} of "
            "TensorFlow Serving does not take"
        )
    _check_fed(signature)
    return signature


def _names(infos: Iterable[Any]) -> set[str]:
    """Return the names of the dense tensors of which those of a signature consist."""
    found: set[str] = set()
    for info in infos:
        kind = info.WhichOneof("encoding")
        if kind == "coo_sparse":
            parts = info.coo_sparse
            found |= {
                parts.values_tensor_name,
                parts.indices_tensor_name,
                parts.dense_shape_tensor_name,
            }
        elif kind == "composite_tensor":
            found |= _names(info.composite_tensor.components)
        else:
            found.add(info.name)
    return found


def _check_fed(signature: Any) -> None:
    """Check that the outputs need no placeholder that a request would not feed."""
    graph = tf1.get_default_graph()
    fed = _names(signature.inputs.values())
    pending = [graph.get_tensor_by_name(name) for name in _names(signature.outputs.values())]
    seen: set[str] = set()
    while pending:
        tensor = pending.pop()
        if tensor.name in fed or tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.type in _FED:
            raise InvalidModelError(
                f"its outputs need the placeholder {tensor.op.name!r}, which is none of its inputs "
                f"({', '.join(sorted(fed))})"
            )
        pending += tensor.op.inputs
        for op in tensor.op.control_inputs:
            pending += op.outputs or op.inputs


def _report(signatures: Mapping[str, Any], left_out: Mapping[str, str]) -> None:
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in left_out.items())
    if not signatures:
        raise InvalidModelError(
            f"no output of the model can be served with this serving input:{reasons}\n"
            "Change export_outputs or the serving_input_receiver_fn so that at least one fits; a "
            "PredictOutput takes any input."
        )
    if left_out:
        _logger.info("signatures that the exported model does not have:%s", reasons)
    if _DEFAULT not in signatures:
        _logger.warning(
            "the exported model has no default signature, only %s; a request has to name one%s",
            ", ".join(signatures),
            reasons,
        )


def checked_receiver(receiver: Any) -> Any:
    """Return the result of a ``serving_input_receiver_fn``, checked."""
    if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
        raise wrong_type(
            "what serving_input_receiver_fn returns",
            receiver,
            "a ServingInputReceiver or TensorServingInputReceiver",
        )
    return receiver
