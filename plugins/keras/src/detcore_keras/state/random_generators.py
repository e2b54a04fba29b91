"""Save, restore and preserve Python's, NumPy's, TensorFlow's and Keras's random generators."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, restore_random_state
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.state.array_files import read_json, write_json
from detcore_keras.state.variables import raw_variable

_logger = logging.getLogger("detcore.keras")

RNG_FILE = "rng.json"
_VERSION = 1
# Odd and large, so that consecutive ranks and steps get unrelated seeds.
_STRIDE = 0x9E3779B1
# Graph operations that contain the state of their random generator.
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
    ``tf.random.normal`` in a graph is not saved, because TensorFlow cannot read it.

    Args:
        directory: Directory to write into.
    """
    eager, generator = _eager_context(), _find_tensorflow_generator()
    keras_seed = _find_keras_generator()
    state = {
        "version": _VERSION,
        **capture_random_state(),
        # Without a seed, eager operations have random ones.
        "tensorflow": {
            "seed": eager._seed,
            "drawn": None if eager._seed is None else eager._rng.getstate(),
        },
        "tensorflow_global_generator": None
        if generator is None
        else {"algorithm": int(generator.algorithm), "state": generator.state.numpy().tolist()},
        "keras_global_seed": None if keras_seed is None else keras_seed.state.numpy().tolist(),
    }
    write_json(directory / RNG_FILE, state)


def warn_of_unsaved_generators(graphs: Iterable[Any]) -> None:
    """Warn about random operations in a training step's graphs whose state cannot be saved.

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
            "be saved (%s). A resumed run draws other numbers. Use keras.random with a "
            "keras.random.SeedGenerator (Keras 3), tf.random.Generator or tf.random.stateless_*.%s",
            ", ".join(sorted(names)),
            keras_2 if KERAS_MAJOR == 2 else "",
        )


def find_process_generators() -> dict[str, tf.Variable]:
    """Return the states of TensorFlow's and Keras's existing process-wide generators, by name."""
    generators = {"tensorflow": _find_tensorflow_generator(), "keras": _find_keras_generator()}
    return {
        name: raw_variable(generator.state)
        for name, generator in generators.items()
        if generator is not None
    }


def restore_rng(directory: Path) -> None:
    """Restore the random generators from a file of `capture_rng`.

    Args:
        directory: The directory of the file.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """
    path = directory / RNG_FILE
    state = read_json(path, ", so the random generators cannot be restored")
    try:
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']!r}, but this is version {_VERSION}")
        if state["tensorflow"]["seed"] is not None:
            tf.random.set_seed(state["tensorflow"]["seed"])
            version, words, gauss = state["tensorflow"]["drawn"]
            _eager_context()._rng.setstate((version, tuple(words), gauss))
        _restore_global_generator(state["tensorflow_global_generator"])
        _restore_keras_seed(state["keras_global_seed"])
        # Last, because creating a generator for Keras draws from Python's generator.
        restore_random_state(state)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{path} cannot be used: {error}") from error


def prepare_script_generators(model: Any) -> int:
    """Make the generators of a script and its model savable; return TensorFlow's seed.

    Generators that exist keep their state. Without ``tf.random.set_seed``, the seed becomes 0.
    """
    seed = _eager_context()._seed
    if seed is None:
        seed = 0
        tf.random.set_seed(seed)
    if _find_tensorflow_generator() is None:
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
    for layer in model._flatten_layers() if KERAS_MAJOR == 2 else ():
        generator: Any = getattr(layer, "_random_generator", None)
        if getattr(generator, "_rng_type", None) == "legacy_stateful":
            # See `prepare_worker`, which runs before the layers of a trial are created.
            generator._rng_type, generator._built = "stateful", False
            generator._maybe_init()
    return int(seed) % (1 << 31)


class RandomState:
    """The state of every random generator, held in memory.

    Args:
        variables: Variables with the model's generators (of dropout and similar layers).
    """

    def __init__(self, variables: Sequence[Any] = ()) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._variables = _list_states(variables)
        self._values = [tf.identity(variable) for variable in self._variables]

    def restore(self) -> None:
        """Restore all generators."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def preserved_rng(variables: Sequence[Any] = ()) -> Iterator[None]:
    """Restore the generators after the block to their state before the block.

    Args:
        variables: See `RandomState`.
    """
    state = RandomState(variables)
    try:
        yield
    finally:
        state.restore()


def vary_by_rank(variables: Sequence[Any], *, seed: int, rank: int, step: int) -> None:
    """Make a worker draw other random numbers than the chief, whose numbers stay the same.

    Args:
        variables: See `RandomState`.
        seed: The trial's seed.
        rank: Rank of this worker; nothing changes for rank 0.
        step: Batches completed.
    """
    if rank == 0:
        return
    offset = (rank * _STRIDE + step) % (1 << 31)
    keras.utils.set_random_seed((seed + offset) % (1 << 31))
    for state in _list_states(variables):
        words = np.array(state.numpy())
        # The last word is the seed in TensorFlow, and a count of draws in Keras 3.
        words[-1] += np.array(offset, words.dtype)
        state.assign(words)


def _list_states(variables: Sequence[Any]) -> list[Any]:
    generator = _find_tensorflow_generator()
    return [*map(raw_variable, variables), *([] if generator is None else [generator.state])]


def _eager_context() -> Any:
    # TensorFlow has no public way to read the seed given to `tf.random.set_seed`, or the number of
    # seeds that eager operations drew from it. Checked on 2.15 and 2.21.
    from tensorflow.python.eager import context

    return context.context()


def _find_tensorflow_generator() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    # The public `tf.random.get_global_generator` would create a generator with a random seed.
    return stateful_random_ops.global_generator


def _restore_global_generator(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    words = np.array(state["state"], np.int64)
    generator = _find_tensorflow_generator()
    if generator is not None and int(generator.algorithm) == state["algorithm"]:
        # Keep the variable, because traced graphs read it.
        generator.state.assign(words)
    else:
        tf.random.set_global_generator(
            tf.random.Generator.from_state(words, alg=state["algorithm"])
        )


def _find_keras_generator() -> Any:
    if KERAS_MAJOR != 3:
        return None
    # Keras has no public name for its global generator. Checked on 3.15.
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def _restore_keras_seed(words: list[int] | None) -> None:
    if KERAS_MAJOR != 3:
        if words is not None:
            raise ValueError("it holds the global seed of Keras 3, but this is Keras 2")
        return
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if words is None:
        # Keras creates its generator on the next use, with a seed from Python's generator.
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
        return
    state = seed_generator.global_seed_generator().state
    state.assign(np.array(words, state.dtype))
