"""Frameworks that go wrong at ends, at callbacks, and at being found."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework_right import RightController

from detcore.errors import InvalidHP

if TYPE_CHECKING:
    from detcore.trial import Clock

BROKEN = "a-broken-trial-is-told"
INVALID = "invalid-hyperparameters-end-the-trial"
CALLBACKS = "callbacks-come-in-order"


class IgnoresTheStop(RightController):
    """Trains on when the clock says stop."""

    clause = "a-stop-request-ends-the-trial"

    def run(self, clock: Clock) -> None:
        self.step = clock.steps_completed
        while self.step < (self.context.planned_batches or 0):
            clock.boundary(self.step, {"loss": self.train_batch()})


class IgnoresItsOwnStop(RightController):
    """Does not look at what the trial sets to stop."""

    clause = "the-frameworks-own-stop-ends-the-trial"

    def must_look(self, clock: Clock) -> bool:
        return clock.interrupt_requested


class BreaksAtItsOwnStop(RightController):
    """Ends its loop, and does not tell the clock."""

    clause = "the-frameworks-own-stop-ends-the-trial"
    is_rare = True

    def must_look(self, clock: Clock) -> bool:
        if self.trial.stop_training:
            raise RuntimeError("the loop ended")
        return clock.interrupt_requested


class IgnoresSignals(RightController):
    """Switches the signal off, so that nobody disturbs it."""

    clause = "exact-resume-after-a-signal"

    def run(self, clock: Clock) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run(clock)


class SwallowsErrors(RightController):
    """Goes on with the next batch."""

    clause = BROKEN

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception:  # noqa: BLE001
            self.step += 1
            return 0.5


class HidesErrors(RightController):
    """Says that something went wrong."""

    clause = BROKEN
    is_rare = True

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception:  # noqa: BLE001
            raise RuntimeError("training failed") from None


class TellsNoFile(RightController):
    """Hands the message on, without where it comes from."""

    clause = BROKEN

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception as error:  # noqa: BLE001
            raise RuntimeError(str(error)) from None


class LeavesAtErrors(RightController):
    """Ends the process with a code of its own."""

    clause = BROKEN
    is_rare = True

    def train_batch(self) -> float:
        try:
            return super().train_batch()
        except Exception:  # noqa: BLE001
            raise SystemExit(0) from None


class HangsAtErrors(RightController):
    """Waits for a thread that never ends."""

    clause = BROKEN
    is_rare = True
    suite = {"timeout_s": 8.0}

    def close(self) -> None:
        import threading

        if self.step < 24:
            threading.Event().wait()


class IgnoresInvalidHyperparameters(RightController):
    """Uses a default instead."""

    clause = INVALID

    def read_rate(self) -> float:
        try:
            return super().read_rate()
        except InvalidHP:
            return 0.05


class CallsInvalidHyperparametersAnError(RightController):
    """Makes an error of its own of it, after which the trial is started again."""

    clause = INVALID
    is_rare = True

    def read_rate(self) -> float:
        try:
            return super().read_rate()
        except InvalidHP as error:
            raise ValueError(str(error)) from error


class FindsOutLate(RightController):
    """Looks at the hyperparameters when it has trained for a while."""

    clause = INVALID
    is_rare = True

    def read_rate(self) -> float:
        return 0.05

    def train_batch(self) -> float:
        if self.step == 6:
            self.trial.rate()
        return super().train_batch()


class TellsOfBatchesTwice(RightController):
    """Calls what a batch calls for the batch and for its step."""

    clause = CALLBACKS
    needs_own_reference = True

    def train_batch(self) -> float:
        self.trial.note("batch_end")
        return super().train_batch()


class NeverEnds(RightController):
    """Does not tell callbacks that training is over."""

    clause = CALLBACKS
    is_rare = True
    needs_own_reference = True

    def run(self, clock: Clock) -> None:
        note = self.trial.note
        self.trial.note = lambda event: note(event) if event != "train_end" else None  # type: ignore[method-assign]
        super().run(clock)


class ValidatesWithoutAnEnd(RightController):
    """Tells of the beginning of a validation alone."""

    clause = CALLBACKS
    is_rare = True
    needs_own_reference = True

    def validation_result(self, total: float, count: int) -> Any:
        self.trial.note("validation_begin")
        return super().validation_result(total, count)


class TellsOfSavesLate(RightController):
    """Tells of a checkpoint when the next batch is done."""

    clause = CALLBACKS
    is_rare = True
    needs_own_reference = True

    def save(self, directory: Any) -> None:
        note, self.trial.note = self.trial.note, lambda event: None  # type: ignore[method-assign]
        super().save(directory)
        self.trial.note = note  # type: ignore[method-assign]
        self.late = True

    def train_batch(self) -> float:
        loss = super().train_batch()
        if self.__dict__.pop("late", False):
            self.trial.note("checkpoint")
        return loss


class TellsNothingOfValidations(RightController):
    """Calls callbacks in training alone."""

    clause = CALLBACKS
    needs_own_reference = True

    def validate(self) -> Any:
        note, self.trial.note = self.trial.note, lambda event: None  # type: ignore[method-assign]
        result = super().validate()
        self.trial.note = note  # type: ignore[method-assign]
        return result


class ImportsItsFrameworkAtDiscovery(RightController):
    """Takes a constant from its framework in the module with the hooks."""

    clause = "discovery-imports-no-framework"
    hooks = "import heavyframe\n"


class NamesWhatIsNotThere(RightController):
    """Registers a function that was renamed."""

    clause = "names-import"
    framework = {"prepare_worker": None, "native_init": "framework_right:start"}


class SuppliesAnUnknownHook(RightController):
    """Implements a hook that there is not."""

    clause = "it-is-found"
    is_rare = True
    hooks = (
        "from detcore import hookimpl\n"
        "@hookimpl\n"
        "def detcore_register_optimizer():\n"
        "    return None\n"
    )


class RegistersAnotherName(RightController):
    """Is called otherwise than its documentation says."""

    clause = "it-is-found"
    framework = {"name": "lines"}


class FailsAtRegistration(RightController):
    """Raises when it is asked."""

    clause = "it-is-found"
    is_rare = True
    hooks = "raise_on_register = 1 / 0\n"


class RepeatsTheLastBatch(RightController):
    """Tells callbacks once more of the batch before the checkpoint."""

    clause = CALLBACKS

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.trial.note("batch_end")


class RepeatsABatchInItsLoop(RightController):
    """Does so when it trains on."""

    clause = CALLBACKS

    def run(self, clock: Clock) -> None:
        if clock.steps_completed:
            self.trial.note("batch_end")
        super().run(clock)
