"""Define hooks that live as long as a trial."""

from __future__ import annotations

from detcore_estimator.tensorflow_versions import tf1


class RunHook(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """A ``SessionRunHook`` with further methods for checkpoints and the end of the trial.

    Put it into ``TrainSpec.hooks``; hooks elsewhere are only called as session hooks. The methods
    of ``SessionRunHook`` (``begin``, ``before_run``, ...) work as usual.

    Example::

        class AddMetadata(detcore_estimator.RunHook):
            def on_checkpoint_end(self, checkpoint_dir):
                with open(os.path.join(checkpoint_dir, "metadata.txt"), "w") as file:
                    file.write("trained on Tuesday")
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called at the start of a trial that resumes from a checkpoint, on every worker.

        It comes before ``begin`` and before anything is restored. A fresh trial never calls it.

        Args:
            checkpoint_dir: Folder with the checkpoint's files; it may be gone afterwards.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called when a checkpoint's files are written and before it is committed, on the chief.

        Files that are written into the folder travel with the checkpoint.

        Args:
            checkpoint_dir: Folder with the checkpoint's files.
        """

    def on_trial_close(self) -> None:
        """Called once when the worker is done with the trial, also after an error."""
