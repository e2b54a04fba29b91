"""Prepare seeds and devices of a worker process before the trial is created."""

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

    Each of several workers gets the GPU of its local rank, and joins the other workers. All workers
    have the same seeds, so they build the same model.

    Operations become deterministic if configured, and by default on a CPU, where this costs almost
    nothing and exact resume needs it.

    The user's module, which is already imported, may have turned TensorFlow 2's behaviour off, like
    code for TensorFlow 1. It is then turned on again, with a warning.

    Args:
        options: The trial's seed, this worker's ranks, and the configuration of determinism.

    Raises:
        InvalidExperimentError: If TensorFlow 2's behaviour cannot be turned on again.
        PluginNotFoundError: If several workers train, and the package that exchanges their
            gradients is not installed.
        DistributedError: If the workers cannot connect.
    """
    keep_eager()
    if options.world_size > 1:
        prepare_collective(options)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        gpu = gpus[options.local_rank % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    if KERAS_MAJOR == 2:
        # Dropout and similar layers then keep their random state in variables, which a checkpoint
        # can contain. The older random operations keep it in their kernels, which cannot be read.
        keras.backend.experimental.enable_tf_random_generator()
    fix_operations(options.deterministic_ops)
    keras.utils.set_random_seed(options.seed)
    # TensorFlow would choose a random seed, or fail if operations are deterministic.
    tf.random.set_global_generator(tf.random.Generator.from_seed(options.seed))


def fix_operations(deterministic: bool | None) -> None:
    """Make operations deterministic; None: only on a CPU."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if deterministic or (deterministic is None and not has_gpu):
        tf.config.experimental.enable_op_determinism()
    elif has_gpu:
        _logger.info(
            "operations are not deterministic on a GPU, so a resumed run may differ in the last "
            "bits. To fix their order, set reproducibility.deterministic_ops: true"
        )
