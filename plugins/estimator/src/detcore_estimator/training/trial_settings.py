"""Apply the user's run configuration and specs to a trial, and report ignored settings."""

from __future__ import annotations

import logging
from typing import Any

from detcore.errors import InvalidExperimentError
from detcore_estimator.specs.run_config import STRATEGIES, default_session_config
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

# Settings that belong to the trial, with their default values.
_OWNED_BY_TRIAL: dict[str, tuple[Any, ...]] = {
    "save_checkpoints_steps": (None,),
    "save_checkpoints_secs": (None, 600),
    "keep_checkpoint_max": (None, 5),
    "keep_checkpoint_every_n_hours": (None, 10000),
    "log_step_count_steps": (None, 100),
}
_SPEC_DELAYS = {"start_delay_secs": 120, "throttle_secs": 600}


def own_run_config(user_config: Any, *, model_dir: str, seed: int) -> Any:
    """Return the user's ``RunConfig`` with the trial's settings.

    Args:
        user_config: The estimator's ``config``.
        model_dir: Directory for the files of this process.
        seed: Seed of the trial, used if the user set none.

    Raises:
        InvalidExperimentError: If the configuration has a distribution strategy.
    """
    for name in STRATEGIES:
        strategy = getattr(user_config, name, None)
        if strategy is not None:
            raise InvalidExperimentError(
                f"the estimator's RunConfig has {name}={strategy!r}.\n"
                "A trial has its own workers, so a strategy would place variables twice.\n"
                "Leave it out, and set resources.slots_per_trial in the experiment file."
            )
    if user_config.tf_random_seed is None:
        user_config = user_config.replace(tf_random_seed=seed)
    return user_config.replace(model_dir=model_dir)


def own_session_config(config: Any, *, local_rank: int) -> Any:
    """Return the user's session configuration, with this worker's GPU if the machine has GPUs.

    Args:
        config: The run configuration.
        local_rank: Index of this worker on its machine.
    """
    session_config = tf1.ConfigProto()
    session_config.CopyFrom(config.session_config or default_session_config())
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and not session_config.gpu_options.visible_device_list:
        session_config.gpu_options.visible_device_list = str(local_rank % len(gpus))
        session_config.gpu_options.allow_growth = True
    return session_config


def size_thread_pools(session_config: Any) -> None:
    """Set the sizes of TensorFlow's process-wide thread pools from a session configuration.

    TensorFlow sets the sizes when it sets up its devices. Building a saver does this, long before
    the first session.

    Args:
        session_config: ``ConfigProto``; a size of 0 leaves the choice to TensorFlow.
    """
    threading = tf.config.threading
    for name, set_threads in (
        ("intra_op_parallelism_threads", threading.set_intra_op_parallelism_threads),
        ("inter_op_parallelism_threads", threading.set_inter_op_parallelism_threads),
    ):
        count = getattr(session_config, name)
        if not count:
            continue
        try:
            set_threads(count)
        except RuntimeError as error:
            # Cannot happen in a worker, but a script may have used TensorFlow before.
            _logger.info("%s=%d may have no effect: %s", name, count, error)


def warn_of_unused(user_config: Any, train_spec: Any, eval_spec: Any) -> None:
    """Log a warning with the user's settings that the trial ignores."""
    unused = [
        f"RunConfig.{name}={getattr(user_config, name)}"
        for name, defaults in _OWNED_BY_TRIAL.items()
        if getattr(user_config, name, None) not in defaults
    ]
    if train_spec.max_steps is not None:
        unused.append(f"TrainSpec.max_steps={train_spec.max_steps}")
    unused += [
        f"EvalSpec.{name}={getattr(eval_spec, name)}"
        for name, default in _SPEC_DELAYS.items()
        if getattr(eval_spec, name, default) not in (default, 0)
    ]
    if unused:
        _logger.warning(
            "ignored in a trial: %s. The experiment file sets the length of training "
            "(searcher.max_length) and the schedule of validations and checkpoints "
            "(min_validation_period, min_checkpoint_period, checkpoint_policy)",
            ", ".join(unused),
        )
