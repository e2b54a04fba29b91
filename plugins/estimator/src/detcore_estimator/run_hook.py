"""Define hooks that live as long as a trial."""

from __future__ import annotations

from detcore_estimator.tensorflow_versions import tf1


class RunHook(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """A ``SessionRunHook`` with additional methods for checkpoints and the end of the trial.

    Put it into ``TrainSpec.hooks``. In other places, only the methods of ``SessionRunHook``
    (``begin``, ``before_run``, ...) are called.

    Example::

        class AddMetadata(detcore_estimator.RunHook):
            def on_checkpoint_end(self, checkpoint_dir):
                with open(os.path.join(checkpoint_dir, "metadata.txt"), "w") as file:
                    file.write("trained on Tuesday")
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called at the start of a trial that resumes from a checkpoint, on every worker.

        The call comes before ``begin``, and before the checkpoint is restored. A fresh trial never
        calls it.

        Args:
            checkpoint_dir: Directory with the checkpoint's files, which may be deleted afterwards.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief when a checkpoint's files are written, before its commit.

        Files that the hook adds become part of the checkpoint.

        Args:
            checkpoint_dir: Directory with the checkpoint's files.
        """

    def on_trial_close(self) -> None:
        """Called once when the worker has finished the trial, also after an error."""
