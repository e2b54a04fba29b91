"""Define the base class of users' trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.trial._context import TrialContext

__all__ = ["Trial"]


class Trial:
    """A training job, described by methods that build its parts.

    Users subclass the trial class of a framework plugin (such as ``detcore_keras.TFKerasTrial``),
    not this class. detcore makes one instance per worker process and passes it the context.
    """

    def __init__(self, context: TrialContext) -> None:
        """Keep the context. Overriders that need more state take it from the context.

        Args:
            context: The trial's hyperparameters, ranks and paths.
        """
        self.context = context
