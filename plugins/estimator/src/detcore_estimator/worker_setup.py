"""Prepare a worker process before the trial is made: behaviour, seeds, order of operations."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from detcore.errors import DistributedError, PluginNotFoundError
from detcore_estimator.tensorflow_versions import quiet_deprecations, tf, tf1

if TYPE_CHECKING:
    from detcore.trial import PrepareOptions


_logger = logging.getLogger("detcore.estimator")

_LAST_WITH_HOROVOD = (2, 15)
_INSTALL = (
    '  pip install "tensorflow==2.15.*"\n'
    "  HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 "
    "HOROVOD_WITHOUT_PYTORCH=1 \\\n"
    "    pip install --no-build-isolation horovod==0.28.1\n"
    "(it is built from source: cmake and a C++17 compiler are needed)."
)


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
        _start_horovod(options)
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


def horovod() -> Any:
    """Return the module ``horovod.tensorflow``.

    Raises:
        PluginNotFoundError: If it is not installed, or was built for another TensorFlow.
    """
    if importlib.util.find_spec("horovod") is None:
        major, minor = (int(part) for part in tf.__version__.split(".")[:2])
        too_new = (major, minor) > _LAST_WITH_HOROVOD
        why = (
            f"No release of Horovod can be built for TensorFlow {tf.__version__}.\n"
            "Train with one worker here, or make an environment for several:\n"
            if too_new
            else "Install it, or train with one worker:\n"
        )
        raise PluginNotFoundError(
            "an Estimator on several workers needs Horovod, which is not installed in this "
            f"environment.\n{why}{_INSTALL}"
        )
    try:
        return importlib.import_module("horovod.tensorflow")
    except ImportError as error:
        raise PluginNotFoundError(
            f"Horovod is installed, but its part for TensorFlow {tf.__version__} cannot be loaded: "
            f"{error}\nIt has to be built in this environment, after TensorFlow:\n{_INSTALL}"
        ) from error


def _start_horovod(options: PrepareOptions) -> None:
    """Let this process find the other workers.

    Args:
        options: This worker's ranks.

    Raises:
        PluginNotFoundError: If Horovod, or its plugin of detcore, is missing.
        DistributedError: If Horovod sees other workers than detcore.
    """
    hvd = horovod()
    hvd.init()
    seen, wanted = (hvd.rank(), hvd.size()), (options.rank, options.world_size)
    if seen == (0, 1) and importlib.util.find_spec("detcore_horovod") is None:
        raise PluginNotFoundError(
            "several workers of an Estimator find each other through detcore-horovod, which is not "
            "installed.\nInstall it with: pip install 'detcore[horovod]'"
        )
    if seen != wanted:
        raise DistributedError(
            f"this process is worker {wanted[0]} of {wanted[1]}, but Horovod takes it for worker "
            f"{seen[0]} of {seen[1]}.\n"
            "The launcher of the workers must set up Horovod, too.\n"
            "Start them with detcore run, with detcore launch --launcher horovod, or with "
            "horovodrun."
        )
