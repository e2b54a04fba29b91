"""Prepare seeds and devices of a worker process before the trial is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore_keras.frameworks import backend, keras

if TYPE_CHECKING:
    from detcore.trial import PrepareOptions


def prepare_worker(options: PrepareOptions) -> None:
    """Seed Python, NumPy, Keras and its back end, choose the GPU, and fix the order of operations.

    Each of several workers gets the GPU of its local rank. All workers have the same seeds, so they
    build the same model.

    Operations become deterministic if configured, and by default on a CPU, where this costs almost
    nothing and exact resume needs it.

    The user's module, which is already imported, may have turned TensorFlow 2's behaviour off, like
    code for TensorFlow 1. It is then turned on again, with a warning.

    Args:
        options: The trial's seed, this worker's ranks, and the configuration of determinism.

    Raises:
        InvalidExperimentError: If TensorFlow 2's behaviour cannot be turned on again.
    """
    backend.keep_mode()
    backend.prepare_devices(options.local_rank)
    backend.fix_operations(options.deterministic_ops)
    keras.utils.set_random_seed(options.seed)
    backend.seed_generators(options.seed)
