"""Prepare a worker process before the trial is made: seeds and devices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from detcore_keras.distributed.collective import prepare_collective
from detcore_keras.frameworks import KERAS_MAJOR, keep_eager, keras, tf

if TYPE_CHECKING:
    from detcore.trial import PrepareOptions


_logger = logging.getLogger("detcore.keras")


def prepare_worker(options: PrepareOptions) -> None:
    """Seed Python, NumPy, TensorFlow and Keras, choose the GPU, and fix the order of operations.

    With several workers, each gets the GPU of its local rank, and joins the others. All of them
    have the same seeds, so that they make the same model.

    Operations are made deterministic if configured, and by default without a GPU: on a CPU it costs
    next to nothing, and an exact resume needs it.

    If the user's module, which has been imported, turned TensorFlow 2's behaviour off, as code for
    TensorFlow 1 does, it is turned on again, with a warning.

    Args:
        options: The trial's seed, this worker's ranks, and the configuration of determinism.

    Raises:
        InvalidExperimentError: If TensorFlow 2's behaviour cannot be turned on again.
        PluginNotFoundError: If there are several workers, and the package that exchanges their
            gradients is not installed.
        DistributedError: If they cannot find each other.
    """
    keep_eager()
    if options.world_size > 1:
        prepare_collective(options)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = gpus[options.local_rank % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    if KERAS_MAJOR == 2:
        # Dropout and similar layers then keep their state in variables, which a checkpoint can
        # hold; the older random operations keep it inside their kernels, where it is unreadable.
        keras.backend.experimental.enable_tf_random_generator()
    deterministic = options.deterministic_ops
    if deterministic is None:
        deterministic = not gpus
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    elif gpus:
        _logger.info(
            "operations are not deterministic on a GPU, so a resumed run may differ in the last "
            "bits; reproducibility.deterministic_ops: true fixes their order"
        )
    keras.utils.set_random_seed(options.seed)
    # TensorFlow would choose a random seed, and refuses to if operations are deterministic.
    tf.random.set_global_generator(tf.random.Generator.from_seed(options.seed))
