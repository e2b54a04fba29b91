"""Save the process's random generators in a file: Python's, NumPy's, TensorFlow's and Keras's."""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, restore_random_state
from detcore_keras._keras import KERAS_MAJOR, keras, tf
from detcore_keras._variables import raw_variable

_logger = logging.getLogger("detcore.keras")

RNG_FILE = "rng.json"
_VERSION = 1
# Operations of a graph that keep the state of their random generator themselves.
_STATEFUL_OPERATIONS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


def capture_rng(directory: Path) -> None:
    """Write the state of the process-wide random generators to ``rng.json``.

    These are ``random``, ``numpy.random``, TensorFlow's global generator and its eager seeds, and
    the seed generator that Keras 3 uses for layers and operations without a seed. Generators that
    are attributes of the model are saved with the model. The state inside operations such as
    ``tf.random.normal`` in a graph is not saved, because TensorFlow provides no way to read it.

    Args:
        directory: Folder to write into.
    """
    state = {
        "version": _VERSION,
        **capture_random_state(),
        "tensorflow": _eager_state(),
        "tensorflow_global_generator": _global_generator_state(),
        "keras_global_seed": _keras_seed_state(),
    }
    (directory / RNG_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")


def warn_of_unsaved_generators(graphs: Iterable[Any]) -> None:
    """Warn of random operations in the graphs of a training step whose state cannot be saved.

    Args:
        graphs: Instances of ``tf.Graph``.
    """
    names = set()
    for graph in graphs:
        definition = graph.as_graph_def()
        bodies = [function.node_def for function in definition.library.function]
        for node in (node for body in [definition.node, *bodies] for node in body):
            # The first graph of Keras 2 also initializes the variables.
            if node.op in _STATEFUL_OPERATIONS and "/Initializer/" not in node.name:
                names.add(node.op)
    if names:
        keras_2 = (
            " For Dropout and similar layers, call "
            "keras.backend.experimental.enable_tf_random_generator() before you build the model."
        )
        _logger.warning(
            "the training step draws random numbers with TensorFlow operations whose state cannot "
            "be saved (%s): a resumed run draws other numbers. Use keras.random with a "
            "keras.random.SeedGenerator (Keras 3), tf.random.Generator or tf.random.stateless_*.%s",
            ", ".join(sorted(names)),
            keras_2 if KERAS_MAJOR == 2 else "",
        )


def find_graphs(function: Any, *, depth: int = 3) -> Iterator[Any]:
    """Yield the graphs of a ``tf.function``, or of those that a Python function calls.

    Args:
        function: Such as ``model.train_function``, in which Keras 3 wraps a ``tf.function``.
        depth: Closures to look into.
    """
    # TensorFlow has no public list of the traces of a function. Checked on 2.15 and 2.21.
    if hasattr(function, "_list_all_concrete_functions"):
        yield from (each.graph for each in function._list_all_concrete_functions())
    elif depth:
        for cell in getattr(function, "__closure__", None) or ():
            if cell != types.CellType() and callable(cell.cell_contents):  # an empty cell raises
                yield from find_graphs(cell.cell_contents, depth=depth - 1)


def generator_finder() -> Callable[[], Mapping[str, tf.Variable]]:
    """Return a function that returns the states of the process-wide generators that exist, by name.

    These are TensorFlow's and Keras's. The function imports nothing, so it is fast.
    """
    from tensorflow.python.ops import stateful_random_ops

    find_keras = _keras_generator_finder()

    def find() -> Mapping[str, tf.Variable]:
        # The public `tf.random.get_global_generator` would make one with a random seed.
        known = {"tensorflow": stateful_random_ops.global_generator, "keras": find_keras()}
        return {name: raw_variable(each.state) for name, each in known.items() if each is not None}

    return find


def restore_rng(directory: Path) -> None:
    """Restore the random generators from a file of `capture_rng`.

    Args:
        directory: The folder of the file.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """
    path = directory / RNG_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']!r}, but this is version {_VERSION}")
        _restore_eager(state["tensorflow"])
        _restore_global_generator(state["tensorflow_global_generator"])
        _restore_keras_seed(state["keras_global_seed"])
        # Last: making a generator for Keras draws from Python's.
        restore_random_state(state)
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {RNG_FILE} (looked in {directory}), so random numbers cannot "
            "continue where they were"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{path} cannot be used: {error}") from error


def _eager_context() -> Any:
    # TensorFlow has no public way to read the seed given to `tf.random.set_seed`, or the number of
    # seeds that eager operations drew from it. Checked on 2.15 and 2.21.
    from tensorflow.python.eager import context

    return context.context()


def _eager_state() -> dict[str, Any]:
    context = _eager_context()
    if context._seed is None:
        return {"seed": None, "drawn": None}  # eager operations have random seeds
    return {"seed": context._seed, "drawn": context._rng.getstate()}


def _restore_eager(state: dict[str, Any]) -> None:
    if state["seed"] is None:
        return
    tf.random.set_seed(state["seed"])
    version, words, gauss = state["drawn"]
    _eager_context()._rng.setstate((version, tuple(words), gauss))


def _global_generator_state() -> dict[str, Any] | None:
    from tensorflow.python.ops import stateful_random_ops

    # The public `tf.random.get_global_generator` would make one with a random seed.
    generator = stateful_random_ops.global_generator
    if generator is None:
        return None
    words = [int(word) for word in generator.state.numpy()]
    return {"algorithm": int(generator.algorithm), "state": words}


def _restore_global_generator(state: dict[str, Any] | None) -> None:
    from tensorflow.python.ops import stateful_random_ops

    if state is None:
        return
    words = np.array(state["state"], np.int64)
    generator = stateful_random_ops.global_generator
    if generator is not None and int(generator.algorithm) == state["algorithm"]:
        # The same variable: traced graphs read this one.
        generator.state.assign(words)
    else:
        tf.random.set_global_generator(
            tf.random.Generator.from_state(words, alg=state["algorithm"])
        )


def _keras_generator_finder() -> Callable[[], keras.random.SeedGenerator | None]:
    if KERAS_MAJOR != 3:
        return lambda: None
    # Keras has no public name for it. Checked on 3.15.
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    name = seed_generator.GLOBAL_SEED_GENERATOR
    return lambda: global_state.get_global_attribute(name)


def _keras_seed_state() -> list[int] | None:
    generator = _keras_generator_finder()()
    return None if generator is None else [int(word) for word in generator.state.numpy()]


def _restore_keras_seed(words: list[int] | None) -> None:
    if KERAS_MAJOR != 3:
        if words is not None:
            raise ValueError("it holds the global seed of Keras 3, but this is Keras 2")
        return
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if words is None:
        # The next use makes one, with a seed from Python's generator.
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
        return
    state = seed_generator.global_seed_generator().state
    state.assign(np.array(words, state.dtype))
