"""Digests of every step of a replay, with the tensors of some, until its last step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.core import DistributedContext
from detcore.data import StepDigests
from detcore.errors import RunError


class ReplayEnd(BaseException):
    """The replay has reached its last step; no code under test may catch it as an error."""


class Probe(StepDigests):
    """Digests the training state after every step, and ends the replay.

    Args:
        path: File to write; ``step-N.npz`` of some steps is put next to it.
        start: Steps completed when the replay starts.
        stop: Its last step.
        saved: Steps whose tensors are saved.
        place: This worker's place.
    """

    reads_each_state = True

    def __init__(
        self,
        path: Path,
        *,
        start: int,
        stop: int,
        saved: Collection[int],
        place: DistributedContext,
    ) -> None:
        super().__init__(path, run_id=1, start_step=start, rank=place.rank, world_size=place.size)
        self._folder = path.parent
        self._stop = stop
        self._saved = frozenset(saved)
        self._now = start
        self._read: Callable[[], Mapping[str, npt.ArrayLike]] | None = None

    def watch(self, tensors: Callable[[], Mapping[str, npt.ArrayLike]] | None) -> None:
        if tensors is None:
            raise RunError("the trial's controller has no state_tensors(), so nothing is compared")
        self._read = tensors
        super().watch(self._tensors_now)

    def log(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: Iterable[npt.ArrayLike] | Callable[[], Iterable[npt.ArrayLike]] = (),
    ) -> None:
        self._reach(step - 1)
        super().log(step, record_ids, content)

    def log_state(self, step: int) -> None:
        self._reach(step)
        if step >= self._stop:
            self.close()
            raise ReplayEnd

    def _reach(self, step: int) -> None:
        if step > self._now:
            self._now = step
            self.digest_state(step)

    def _tensors_now(self) -> Mapping[str, npt.ArrayLike]:
        assert self._read is not None  # set by watch
        found = self._read()
        if self._now in self._saved:
            # Names have characters that a file's name in an archive has not.
            arrays = {str(index): np.asarray(value) for index, value in enumerate(found.values())}
            names = np.array(list(found))
            np.savez(self._folder / f"step-{self._now}.npz", **{"names": names, **arrays})  # type: ignore[arg-type]  # its other argument is not meant
        return found


def load_tensors(folder: Path, step: int) -> dict[str, npt.NDArray[np.generic]] | None:
    """Return the tensors that a probe saved after a step; None if it did not."""
    path = folder / f"step-{step}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return {str(name): file[str(index)] for index, name in enumerate(file["names"])}
