"""Find the checkpoints in an estimator's directory."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from detcore.errors import InvalidCheckpointError
from detcore_estimator.checkpoint.tensorflow_files import readable_by_tensorflow, restore_variables
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")


def latest_checkpoint(model_dir: str) -> str | None:
    """Return the latest checkpoint according to a directory's file ``checkpoint``.

    Unlike TensorFlow's function of this name, this raises an error if the latest checkpoint was
    deleted. Otherwise training would silently start again.

    Args:
        model_dir: The directory, which may not exist yet.

    Returns:
        The checkpoint's path without ``.index``, or None.

    Raises:
        InvalidCheckpointError: If the latest checkpoint does not exist.
    """
    state = tf1.train.get_checkpoint_state(model_dir)
    if state is None or not state.model_checkpoint_path:
        return None
    path = str(state.model_checkpoint_path)
    if not _has_index(path):
        raise InvalidCheckpointError(
            f"{os.path.join(model_dir, 'checkpoint')} names {path} as the latest checkpoint, but "
            "its files do not exist.\n"
            "They were deleted, or the directory was copied from another place.\n"
            "Correct model_checkpoint_path in that file, or delete the file to start again."
        )
    return path


def resolve_checkpoint(
    model_dir: str, checkpoint_path: str | os.PathLike[str] | None
) -> str | None:
    """Return the checkpoint for the user's argument.

    Args:
        model_dir: The estimator's directory.
        checkpoint_path: A checkpoint's path with or without ``.index``, a directory for its latest
            checkpoint, or None for the latest checkpoint of `model_dir`.

    Returns:
        The path, or None if `checkpoint_path` is None and `model_dir` has no checkpoint.

    Raises:
        InvalidCheckpointError: If the named checkpoint does not exist. It is a ``ValueError``.
    """
    if checkpoint_path is None or checkpoint_path == "":
        return latest_checkpoint(model_dir)
    path = os.fspath(checkpoint_path)
    for candidate in (path.removesuffix(".index"), path):
        if _has_index(candidate):
            return candidate
    latest = latest_checkpoint(path) if tf.io.gfile.isdir(path) else None
    if latest is None:
        raise InvalidCheckpointError(
            f"the checkpoint {path} does not exist.\n"
            "Pass the path of its files without the suffix, such as '/models/a/model.ckpt-1000'."
        )
    return latest


def require_checkpoint(model_dir: str, checkpoint_path: str | os.PathLike[str] | None) -> str:
    """Return an existing checkpoint for the user's argument; see `resolve_checkpoint`.

    Raises:
        InvalidCheckpointError: If the checkpoint does not exist. It is a ``ValueError``.
    """
    path = resolve_checkpoint(model_dir, checkpoint_path)
    if path is None:
        raise InvalidCheckpointError(
            f"could not find a trained model in model_dir {model_dir}: it has no checkpoint.\n"
            "Call train() first, or pass another directory or a checkpoint_path."
        )
    return path


def restore_checkpoint(saver: Any, session: Any, path: str) -> None:
    """Restore a checkpoint into a session's variables.

    Raises:
        InvalidCheckpointError: If the checkpoint does not fit.
    """
    if "://" in path or not isinstance(saver, tf1.train.Saver):
        saver.restore(session, path)
    else:
        restore_variables(saver, session, Path(path))


def make_restorer(
    scaffold: Any, path: str | None, model_dir: str | None = None
) -> Callable[[Any], None] | None:
    """Return a function that restores a checkpoint into a session; None without a checkpoint.

    Args:
        scaffold: The scaffold with the saver.
        path: The checkpoint.
        model_dir: Directory in which the saver removes old checkpoints afterwards, or None.
    """
    if path is None:
        return None

    def restore_from_path(session: Any) -> None:
        restore_checkpoint(scaffold.saver, session, path)
        if model_dir is not None:
            _logger.info("resuming from %s", path)
            state = tf1.train.get_checkpoint_state(model_dir)
            scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)

    return restore_from_path


def read_global_step(path: str) -> int:
    """Return the global step of a checkpoint; 0 if the checkpoint has none."""
    with open_reader(path) as reader:
        if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
            return 0
        return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))


@contextlib.contextmanager
def open_reader(path: str) -> Iterator[Any]:
    """Yield a ``tf.train.CheckpointReader`` of a checkpoint."""
    if "://" in path:
        yield tf1.train.NewCheckpointReader(path)
        return
    with readable_by_tensorflow(Path(path).parent) as folder:
        yield tf1.train.NewCheckpointReader(str(folder / Path(path).name))


def _has_index(path: str) -> bool:
    # TensorFlow's own checks treat the path as a pattern.
    return bool(tf.io.gfile.exists(f"{path}.index"))
