"""Prepare behaviour, seeds and determinism of a worker process before the trial is created."""

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
    "(Horovod is built from source, with cmake and a C++17 compiler)."
)


def prepare_worker(options: PrepareOptions) -> None:
    """Switch TensorFlow to V1 behaviour, seed it, and fix the order of operations.

    Several workers connect through Horovod.

    Variables stay resource variables, so the values that a step reads do not depend on timing. This
    function opens no session and uses no device. Both would fix TensorFlow's thread pools before
    the user's session configuration is known.

    Operations become deterministic if configured, and by default on a CPU, where this costs almost
    nothing and exact resume needs it.

    Args:
        options: The trial's seed, the configuration of determinism, and this worker's ranks.

    Raises:
        PluginNotFoundError: If several workers train, but Horovod is not installed.
        DistributedError: If Horovod's ranks differ from detcore's.
    """
    if options.world_size > 1:
        _start_horovod(options)
    # It warns that it disables resource variables, which are enabled again immediately.
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
                "last bits. To fix their order, set reproducibility.deterministic_ops: true"
            )
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    tf1.set_random_seed(options.seed)


def import_horovod() -> Any:
    """Return the module ``horovod.tensorflow``.

    Raises:
        PluginNotFoundError: If Horovod is not installed, or was built for another TensorFlow.
    """
    if importlib.util.find_spec("horovod") is None:
        major, minor = (int(part) for part in tf.__version__.split(".")[:2])
        too_new = (major, minor) > _LAST_WITH_HOROVOD
        why = (
            f"Horovod cannot be built for TensorFlow {tf.__version__}.\n"
            "Train with one worker, or create an environment for several workers:\n"
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
            f"Horovod is installed, but its module for TensorFlow {tf.__version__} cannot be "
            f"loaded: {error}\nBuild Horovod in this environment, after TensorFlow:\n{_INSTALL}"
        ) from error


def _start_horovod(options: PrepareOptions) -> None:
    """Initialize Horovod, and connect to the other workers.

    Args:
        options: This worker's ranks.

    Raises:
        PluginNotFoundError: If Horovod or detcore-horovod is not installed.
        DistributedError: If Horovod's ranks differ from detcore's.
    """
    hvd = import_horovod()
    hvd.init()
    horovod_rank_and_size, rank_and_size = (
        (hvd.rank(), hvd.size()),
        (options.rank, options.world_size),
    )
    if horovod_rank_and_size == (0, 1) and importlib.util.find_spec("detcore_horovod") is None:
        raise PluginNotFoundError(
            "several workers of an Estimator connect through detcore-horovod, which is not "
            "installed.\nInstall it with: pip install 'detcore[horovod]'"
        )
    if horovod_rank_and_size != rank_and_size:
        raise DistributedError(
            f"this process is rank {rank_and_size[0]} of {rank_and_size[1]} of the trial, but "
            f"Horovod reports rank {horovod_rank_and_size[0]} of {horovod_rank_and_size[1]}.\n"
            "The launcher of the workers must also set up Horovod.\n"
            "Start them with detcore run, with detcore launch --launcher horovod, or with "
            "horovodrun."
        )
