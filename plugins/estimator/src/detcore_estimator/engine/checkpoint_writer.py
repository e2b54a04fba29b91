"""Save checkpoints during training, and notify listeners."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from detcore_estimator.engine.event_files import EventFile
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")


class CheckpointWriter(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Writes checkpoints at the start, periodically, and at the end of training.

    A hook with ``begin``, ``after_create_session`` and ``end``. After each successful step, the
    training loop checks whether a save is due.

    Args:
        config: The run configuration.
        model_dir: Directory of the checkpoints.
        scaffold: The model's scaffold, whose saver is used.
        listeners: ``CheckpointSaverListener`` objects.
        events: The training's event file.
        restored: The checkpoint that training resumes from, or None. It is not written again,
            because a crash during the replacement would lose it.
    """

    def __init__(
        self,
        *,
        config: Any,
        model_dir: str,
        scaffold: Any,
        listeners: Sequence[Any],
        events: EventFile,
        restored: str | None,
    ) -> None:
        self._config = config
        self._model_dir = model_dir
        self._scaffold = scaffold
        self._listeners = tuple(listeners)
        self._events = events
        self._restored = restored
        self._saved_step: int | None = None
        self._saved_at = 0.0
        self._every_steps: int | None = config.save_checkpoints_steps
        self._every_s: float | None = config.save_checkpoints_secs

    @property
    def _prefix(self) -> str:
        return os.path.join(self._model_dir, "model.ckpt")

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        step = _read_step(session)
        if self._config.checkpoint_save_graph_def:
            definition = session.graph.as_graph_def(add_shapes=True)
            tf.io.write_graph(definition, self._model_dir, "graph.pbtxt")
        if self._restored == f"{self._prefix}-{step}":
            self._saved_step, self._saved_at = step, time.monotonic()
        else:
            self.save(session, step)

    def end(self, session: Any) -> None:
        step = _read_step(session)
        if step != self._saved_step:
            self.save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after this global step."""
        if step == self._saved_step or self._saved_step is None:
            return self._saved_step is None
        if self._every_steps:
            return step >= self._saved_step + self._every_steps
        return bool(self._every_s) and time.monotonic() >= self._saved_at + (self._every_s or 0)

    def save(self, session: Any, step: int) -> bool:
        """Write a checkpoint.

        The file ``checkpoint`` names the new checkpoint only when it is complete. Only then are
        older checkpoints removed.

        Returns:
            Whether a listener requests the end of training.
        """
        for listener in self._listeners:
            listener.before_save(session, step)
        path = self._scaffold.saver.save(
            session,
            self._prefix,
            global_step=step,
            write_meta_graph=self._config.checkpoint_save_graph_def,
        )
        self._saved_step, self._saved_at = step, time.monotonic()
        self._events.write_session_log(
            step, status=tf1.SessionLog.CHECKPOINT, checkpoint_path=f"{self._prefix}-{step}"
        )
        _logger.info("saved %s", path)
        # Every listener is called, regardless of earlier results.
        answers = [listener.after_save(session, step) for listener in self._listeners]
        return any(answers)


def _read_step(session: Any) -> int:
    return int(session.run(tf1.train.get_global_step(session.graph)))
