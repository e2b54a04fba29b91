"""Trials of the frameworks that keep their contract, or do not."""

from __future__ import annotations

from framework_right import RightTrial


class LineTrial(RightTrial):
    """Runs to its end."""


class SteadyTrial(RightTrial):
    """Much the same on any number of workers."""

    noise = 1e-9
    shuffles = False


class BrokenTrial(RightTrial):
    """Fails at batch 6."""

    def batch_begins(self, step: int) -> None:
        if step == 6:
            raise ZeroDivisionError("broken on purpose")


class StoppingTrial(RightTrial):
    """Stops in the framework's own way."""

    stops_at = 9
