"""Find and check the model to train, and its optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidModelError, describe
from detcore_keras.distributed.gradients import sums_batches
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.state.variables import OPTIMIZERS, layer_generators


def check_model(returned: Any, wrapped: Sequence[Any]) -> Any:
    """Return the model to train.

    Args:
        returned: Result of ``build_model``.
        wrapped: The arguments of ``wrap_model``.

    Raises:
        InvalidModelError: If the result is not a Keras model, was not wrapped or not compiled,
            replaces the functions that Keras calls for each batch, or belongs to a distribution
            strategy.
    """
    if returned is not None and not isinstance(returned, keras.Model):
        raise InvalidModelError(
            f"build_model returned {describe(returned)}, which is not a Keras model.\n"
            "Return the model that context.wrap_model returned, after compiling it."
        )
    if not wrapped or (returned is not None and not any(returned is m for m in wrapped)):
        raise InvalidModelError(
            "build_model did not wrap the model that it returned.\n"
            "detcore trains the model passed to context.wrap_model.\n"
            "Add this before model.compile(...): model = self.context.wrap_model(model)"
        )
    model = wrapped[-1] if returned is None else returned
    compiled = model.compiled if KERAS_MAJOR == 3 else model._is_compiled
    if not compiled:
        raise InvalidModelError(
            f"build_model did not compile {model.name!r} ({type(model).__name__}).\n"
            "The optimizer, the loss and the metrics come from compile.\n"
            "Call model.compile(...) after context.wrap_model(model). A class that overrides "
            "compile must call super().compile()."
        )
    for kind in ("train", "test"):
        name = f"make_{kind}_function"
        if getattr(type(model), name) is not getattr(keras.Model, name) or name in vars(model):
            raise InvalidModelError(
                f"{type(model).__name__} replaces {name}, which a trial does not call: it trains "
                f"many batches in one call of the graph.\nOverride {kind}_step instead."
            )
    if (
        model.distribute_strategy is not tf.distribute.get_strategy()
        or tf.distribute.has_strategy()
    ):
        raise InvalidModelError(
            f"the model {model.name!r} was built under a distribution strategy "
            f"({type(model.distribute_strategy).__name__}).\n"
            "detcore runs one worker process for each device.\n"
            "Build the model without a strategy, and set resources.slots_per_trial."
        )
    return model


def list_optimizers(model: Any, wrapped: Iterable[Any]) -> list[Any]:
    """Return every optimizer whose state belongs to the training state.

    These are, in this order, the optimizer of ``compile``, the optimizers in `wrapped`, and
    optimizers that are attributes of the model.
    """
    attributes = [value for _, value in sorted(vars(model).items())]
    optimizers: list[Any] = []
    for optimizer in [getattr(model, "optimizer", None), *wrapped, *attributes]:
        if isinstance(optimizer, OPTIMIZERS) and not any(
            optimizer is known_optimizer for known_optimizer in optimizers
        ):
            optimizers.append(optimizer)
    return optimizers


def model_generators(model: Any) -> list[Any]:
    """Return the variables that hold the random generators of a model's layers."""
    if KERAS_MAJOR == 3:
        return [v for v in model.variables if v.path.endswith("seed_generator_state")]
    return list(layer_generators(model))


def list_trainable(model: Any) -> list[bool]:
    """Return whether each of the model's layers is trainable, nested layers included."""
    return [bool(layer.trainable) for layer in model._flatten_layers()]


def set_trainable(model: Any, flags: Sequence[bool]) -> None:
    """Restore a result of `list_trainable`.

    Raises:
        InvalidCheckpointError: If the model has another number of layers.
    """
    layers = list(model._flatten_layers())
    if len(layers) != len(flags):
        raise InvalidCheckpointError(
            f"the checkpoint is for a model with {len(flags)} layers, but {model.name!r} has "
            f"{len(layers)}.\nUse the code in the checkpoint's directory code/."
        )
    # Outer layers come first, because setting a layer's flag also sets it for inner layers.
    for layer, flag in zip(layers, flags, strict=True):
        if bool(layer.trainable) is not flag:
            layer.trainable = flag


def build_ahead(model: Any, element_spec: Any) -> None:
    """Create the variables of the optimizer and the metrics, as the first step would.

    TensorFlow traces a step twice if its first trace creates variables. This function creates the
    same variables, with the same names, if the whole step is Keras's own, that is for a functional
    or sequential model with one output. For other models, the trace creates them.

    Args:
        model: The compiled model.
        element_spec: Nested ``tf.TypeSpec`` of one batch.
    """
    output = _only_output(model)
    target = element_spec[1] if isinstance(element_spec, tuple) and len(element_spec) > 1 else None
    if output is None or not isinstance(target, tf.TensorSpec) or target.shape.rank is None:
        return
    build_optimizer(model)
    metrics = model._compile_metrics if KERAS_MAJOR == 3 else model.compiled_metrics
    if metrics is None or metrics.built:
        return
    if KERAS_MAJOR == 3:
        metrics.build(keras.KerasTensor(target.shape.as_list(), target.dtype.name), output)
    else:
        metrics.build(output, target)


def build_optimizer(model: Any) -> None:
    """Create the variables of a model's optimizer, unless they exist or it is not Keras's."""
    optimizer = model.optimizer
    is_plain = isinstance(optimizer, keras.optimizers.Optimizer) and _is_from_keras(optimizer)
    # The trace always creates the sums of gradients.
    if not is_plain or sums_batches(optimizer):
        return
    if KERAS_MAJOR == 3:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
    elif not (hasattr(optimizer, "_built") or hasattr(optimizer, "inner_optimizer")):
        with tf.name_scope(optimizer.name):
            optimizer.build(model.trainable_variables)


def _only_output(model: Any) -> Any:
    """Return the symbolic output of a model whose step is Keras's own; None for other models."""
    # A sequential model of Keras 3 contains a functional model.
    functional = getattr(model, "_functional", None) or model
    # Keras has no public name for the structure of the outputs. Checked on 2.15 and 3.15.
    output = getattr(functional, "_outputs_struct" if KERAS_MAJOR == 3 else "_nested_outputs", None)
    steps = {"train_step", "compute_loss", "compute_metrics"}
    if not _is_from_keras(model) or steps & vars(model).keys() or tf.nest.is_nested(output):
        return None
    # A Keras 2 layer may create weights in the first step, but Keras 2 optimizers keep the first
    # list of weights. Keras 3 also builds its optimizers this early.
    if KERAS_MAJOR == 2 and not all(map(_is_from_keras, model._flatten_layers())):
        return None
    return output


def _is_from_keras(value: Any) -> bool:
    keras_package, value_package = (
        kind.__module__.partition(".")[0] for kind in (keras.Model, type(value))
    )
    return bool(keras_package == value_package)
