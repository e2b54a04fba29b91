"""Frameworks with faults in stops, callbacks and discovery."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework_right import RightController

from detcore.errors import InvalidHP

if TYPE_CHECKING:
    from detcore.trial import Clock

BROKEN = "trial-errors-end-the-run"
INVALID = "invalid-hyperparameters-end-trial"
CALLBACKS = "callbacks-run-in-order"


class IgnoresTheStop(RightController):
    """Continues training when the clock requests a stop."""

    clause = "stop-request-ends-trial"

    def run(self, clock: Clock) -> None:
        self.step = clock.steps_completed
        while self.step < (self.context.planned_batches or 0):
            clock.boundary(self.step, {"loss": self.train_batch()})


class IgnoresItsOwnStop(RightController):
    """Ignores the trial's stop flag."""

    clause = "framework-stop-ends-trial"

    def must_look(self, clock: Clock) -> bool:
        return clock.interrupt_requested


class IgnoresSignals(RightController):
    """Ignores the signal."""

    clause = "exact-resume-after-sigterm"

    def run(self, clock: Clock) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run(clock)


class SwallowsErrors(RightController):
    """Continues with the next batch."""

    clause = BROKEN

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception:  # noqa: BLE001
            self.step += 1
            return 0.5


class DropsTheTraceback(RightController):
    """Reports the message without the traceback."""

    clause = BROKEN

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception as error:  # noqa: BLE001
            raise RuntimeError(str(error)) from None


class IgnoresInvalidHyperparameters(RightController):
    """Uses a default instead."""

    clause = INVALID

    def read_rate(self) -> float:
        try:
            return super().read_rate()
        except InvalidHP:
            return 0.05


class CallsBatchCallbacksTwice(RightController):
    """Calls the batch callbacks twice."""

    clause = CALLBACKS
    needs_own_reference = True

    def train_batch(self) -> float:
        self.trial.note("batch_end")
        return super().train_batch()


class CallsNoValidationCallbacks(RightController):
    """Calls callbacks only in training."""

    clause = CALLBACKS
    needs_own_reference = True

    def validate(self) -> Any:
        note, self.trial.note = self.trial.note, lambda event: None  # type: ignore[method-assign]
        result = super().validate()
        self.trial.note = note  # type: ignore[method-assign]
        return result


class ImportsItsFrameworkAtDiscovery(RightController):
    """Imports its framework in the module with the hooks."""

    clause = "discovery-imports-no-framework"
    hooks = "import heavyframe\n"


class RegistersMissingFunction(RightController):
    """Registers a function that was renamed."""

    clause = "framework-is-registered"
    framework = {"prepare_worker": None, "native_init": "framework_right:start"}


class RegistersAnotherName(RightController):
    """Registers another name than documented."""

    clause = "framework-is-registered"
    framework = {"name": "lines"}


class RepeatsTheLastBatch(RightController):
    """Calls callbacks again for the batch before the checkpoint."""

    clause = CALLBACKS

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.trial.note("batch_end")
