"""Prepare a worker process before the trial is made: behaviour, seeds, order of operations."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from detcore_estimator._tf import quiet_deprecations, tf, tf1

if TYPE_CHECKING:
    from detcore.trial import PrepareOptions


_logger = logging.getLogger("detcore.estimator")


def prepare_worker(options: PrepareOptions) -> None:
    """Switch TensorFlow to V1 behaviour, seed it, and fix the order of operations.

    Several workers find one another through Horovod.

    Variables stay resource variables, so the values that a step reads do not depend on timing. No
    session is opened and no device touched, because the first one fixes TensorFlow's thread pools,
    and the user's session configuration is not known yet.

    Operations are made deterministic if configured, and by default without a GPU: on a CPU it costs
    next to nothing, and an exact resume needs it.

    Args:
        options: The trial's seed, the configuration of determinism, and this worker's ranks.

    Raises:
        PluginNotFoundError: If there are several workers, but no Horovod.
        DistributedError: If Horovod sees other workers than detcore.
    """
    if options.world_size > 1:
        from detcore_estimator._workers._horovod import start_horovod

        start_horovod(options)
    # It warns of resource variables that it switches off, which are on again right after.
    with quiet_deprecations():
        tf1.disable_v2_behavior()
        tf1.enable_resource_variables()
    deterministic = options.deterministic_ops
    if deterministic is None:
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        deterministic = not has_gpu
        if has_gpu:
            _logger.info(
                "operations are not deterministic on a GPU, so a resumed run may differ in the "
                "last bits; reproducibility.deterministic_ops: true fixes their order"
            )
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    tf1.set_random_seed(options.seed)
