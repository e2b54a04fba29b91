"""Define the inputs and outputs of a served model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from detcore.errors import InvalidModelError
from detcore_estimator.specs.argument_checks import wrong_type
from detcore_estimator.tensorflow_versions import tf, tf1

# Default names that TensorFlow Serving and saved_model_cli expect.
_FEATURE, _INPUT, _OUTPUT = "feature", "input", "output"


class _ReceiverFields(NamedTuple):
    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


class ServingInputReceiver(_ReceiverFields):
    """The input of a served model: tensors to feed, and the features computed from them.

    Args:
        features: Tensor, sparse or ragged tensor for ``model_fn``, or a dict of tensors with
            strings or integers as keys. A single tensor is wrapped as ``{"feature": tensor}``. For
            a model that accepts a bare tensor, use `TensorServingInputReceiver`.
        receiver_tensors: Tensor, or dict of tensors with strings as keys, that a request feeds.
            They are usually placeholders. A single tensor gets the name ``"input"``.
        receiver_tensors_alternatives: Dict from a name to other `receiver_tensors`. Each entry adds
            signatures ``"name:signature"`` that feed the graph at these tensors.

    Raises:
        InvalidModelError: If a value or key has the wrong type. It is a ``ValueError``.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> ServingInputReceiver:
        """Check the parts and put them together."""
        return super().__new__(
            cls,
            _name_tensors("features", features, _FEATURE, key_types=(str, int)),
            _name_tensors("receiver_tensors", receiver_tensors, _INPUT),
            _named_alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_ReceiverFields):
    """Like `ServingInputReceiver`, for a model whose ``features`` are one bare tensor.

    Args:
        features: The tensor, sparse or ragged tensor that ``model_fn`` receives.
        receiver_tensors: See `ServingInputReceiver`.
        receiver_tensors_alternatives: See `ServingInputReceiver`.

    Raises:
        InvalidModelError: If a value or key has the wrong type. It is a ``ValueError``.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> TensorServingInputReceiver:
        """Check the parts and put them together."""
        if not _is_tensor(features):
            raise wrong_type(
                "features", features, "one tensor (ServingInputReceiver accepts a dict of tensors)"
            )
        return super().__new__(
            cls,
            features,
            _name_tensors("receiver_tensors", receiver_tensors, _INPUT),
            _named_alternatives(receiver_tensors_alternatives),
        )


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function for requests that contain the raw features.

    Args:
        features: Dict from a feature's name to a placeholder, an eager tensor or a
            ``tf.TensorSpec``. Only its dtype and its shape, ``(batch, ...)``, are used.
        default_batch_size: Records per request; None = any number.

    Returns:
        A ``serving_input_receiver_fn``.
    """
    if not isinstance(features, Mapping) or not features:
        raise wrong_type("features", features, "a dict from names to tensors")
    # Read immediately, because the graph of these tensors may not exist during the export.
    kinds = {
        name: (tensor.dtype, _batch_shape(tensor, default_batch_size))
        for name, tensor in features.items()
    }

    def serving_input_receiver_fn() -> ServingInputReceiver:
        tensors = {
            name: tf1.placeholder(dtype, shape, name=_operation_name(name))
            for name, (dtype, shape) in kinds.items()
        }
        return ServingInputReceiver(tensors, tensors)

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function for requests that contain serialized ``tf.train.Example`` records.

    Args:
        feature_spec: Dict from a feature's name to its specification, such as
            ``tf.io.FixedLenFeature`` or ``tf.io.VarLenFeature``.
        default_batch_size: Records per request; None = any number.

    Returns:
        A ``serving_input_receiver_fn`` whose requests feed ``"examples"``, (batch,), string.
    """
    feature_spec = dict(feature_spec)

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(
            tf1.io.parse_example(examples, feature_spec), {"examples": examples}
        )

    return serving_input_receiver_fn


class PredictOutput:
    """The outputs of a signature of any kind.

    Args:
        outputs: Tensor, or dict of tensors. Keys are strings, or tuples of strings, which are
            joined with ``/``. A single tensor gets the name ``"output"``.
    """

    def __init__(self, outputs: Any) -> None:
        outputs_by_name = dict(outputs) if isinstance(outputs, Mapping) else {_OUTPUT: outputs}
        self.outputs = {
            _output_key(key): _checked_output(key, outputs_by_name[key]) for key in outputs_by_name
        }

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature for the tensors that a request feeds."""
        return tf1.saved_model.predict_signature_def(dict(receiver_tensors), self.outputs)


class ClassificationOutput:
    """The outputs of a classifier, for requests of serialized ``tf.train.Example`` records.

    With both, each score belongs to the class at the same position. Scores alone are in the order
    of class ids. Classes alone are the best classes, in descending order.

    Args:
        scores: (batch, classes), floating, or None.
        classes: (batch, classes), string, or None.
    """

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is None and classes is None:
            raise InvalidModelError("ClassificationOutput needs scores, classes or both")
        if scores is not None and not (_is_dense(scores) and scores.dtype.is_floating):
            raise wrong_type("scores", scores, "a tensor of floating-point numbers")
        if classes is not None and not (_is_dense(classes) and classes.dtype == tf.string):
            raise wrong_type("classes", classes, "a tensor of strings")
        self.scores = None if scores is None else _checked_output("scores", scores)
        self.classes = None if classes is None else _checked_output("classes", classes)

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature for the tensor of serialized records that a request feeds."""
        examples = _get_examples("classification", receiver_tensors)
        return tf1.saved_model.classification_signature_def(examples, self.classes, self.scores)


class RegressionOutput:
    """The output of a regression, for requests of serialized ``tf.train.Example`` records.

    Args:
        value: (batch, ...), floating.
    """

    def __init__(self, value: Any) -> None:
        if not (_is_dense(value) and value.dtype.is_floating):
            raise wrong_type("value", value, "a tensor of floating-point numbers")
        self.value = _checked_output("value", value)

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature for the tensor of serialized records that a request feeds."""
        examples = _get_examples("regression", receiver_tensors)
        return tf1.saved_model.regression_signature_def(examples, self.value)


def _get_examples(kind: str, receiver_tensors: Mapping[str, Any]) -> Any:
    tensors = list(receiver_tensors.values())
    if len(tensors) != 1 or tensors[0].dtype != tf.string:
        raise InvalidModelError(
            f"a {kind} signature requires one tensor of serialized tf.train.Example records, but "
            f"the serving input receives {dict(receiver_tensors)}"
        )
    return tensors[0]


def _is_dense(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.Variable))


def _is_tensor(value: Any) -> bool:
    return _is_dense(value) or isinstance(value, (tf.SparseTensor, tf.RaggedTensor))


def _name_tensors(
    place: str, tensors: Any, default: str, key_types: tuple[type, ...] = (str,)
) -> dict[Any, Any]:
    tensors_by_name = dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}
    if not tensors_by_name:
        raise InvalidModelError(f"{place} is empty; it needs at least one tensor")
    for key, tensor in tensors_by_name.items():
        if not isinstance(key, key_types):
            raise wrong_type(f"each key of {place}", key, "a string")
        if not _is_tensor(tensor):
            raise wrong_type(f"{place}[{key!r}]", tensor, "a tensor, sparse or ragged tensor")
    return tensors_by_name


def _named_alternatives(alternatives: Any) -> dict[str, dict[Any, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, Mapping):
        raise wrong_type("receiver_tensors_alternatives", alternatives, "a dict")
    return {
        name: _name_tensors(f"receiver_tensors_alternatives[{name!r}]", tensors, _INPUT)
        for name, tensors in alternatives.items()
    }


def _batch_shape(tensor: Any, batch_size: int | None) -> Any:
    """Return the shape of a tensor with another size for the first axis."""
    return tf.TensorShape([batch_size]).concatenate(tf.TensorShape(tensor.shape)[1:])


def _operation_name(name: str) -> str:
    """Return a valid operation name for TensorFlow."""
    allowed = "".join(c if (c.isascii() and c.isalnum()) or c in "_.-/" else "_" for c in name)
    return allowed if allowed[:1].isalnum() or allowed[:1] == "." else f"feature{allowed}"


def _output_key(key: Any) -> str:
    name = "/".join(key) if isinstance(key, tuple) else key
    if not isinstance(name, str):
        raise wrong_type("each key of the outputs", key, "a string")
    return name


def _checked_output(key: Any, value: Any) -> Any:
    if not _is_tensor(value):
        raise wrong_type(f"the output {key!r}", value, "a tensor")
    # A signature names tensors, but a variable has the name of its handle.
    return tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value
