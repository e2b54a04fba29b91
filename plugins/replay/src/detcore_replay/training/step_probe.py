"""Digests of every step of a replay, and tensors of selected steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.core import DistributedContext
from detcore.data import StepDigests
from detcore.errors import RunError


class ReplayEnd(BaseException):
    """Raised at the last step of a replay. User code must not catch it as an error."""


class Probe(StepDigests):
    """Digests the training state after every step, and ends the replay.

    Args:
        path: File to write. Files ``step-N.npz`` of saved steps are written beside it.
        start: Steps completed when the replay starts.
        stop: Last step of the replay.
        saved: Steps whose tensors are saved.
        place: Place of this worker.
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

    def watch(
        self,
        tensors: Callable[[], Mapping[str, npt.ArrayLike]] | None,
        digests: Mapping[str, int] | None = None,
    ) -> None:
        if tensors is None:
            raise RunError("the trial's controller has no state_tensors() to compare")
        self._read = tensors
        super().watch(self._read_tensors)

    def log(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: Iterable[npt.ArrayLike] | Callable[[], Iterable[npt.ArrayLike]] = (),
    ) -> None:
        self._advance(step - 1)
        super().log(step, record_ids, content)

    def log_state(self, step: int) -> None:
        self._advance(step)
        if step >= self._stop:
            self.close()
            raise ReplayEnd

    def _advance(self, step: int) -> None:
        if step > self._now:
            self._now = step
            self.digest_state(step)

    def _read_tensors(self) -> Mapping[str, npt.ArrayLike]:
        assert self._read is not None  # set by watch
        tensors = self._read()
        if self._now in self._saved:
            # Names contain characters that file names in an archive cannot contain.
            arrays = {str(index): np.asarray(value) for index, value in enumerate(tensors.values())}
            names = np.array(list(tensors))
            np.savez(self._folder / f"step-{self._now}.npz", **{"names": names, **arrays})  # type: ignore[arg-type]  # not the argument allow_pickle
        return tensors


def load_tensors(folder: Path, step: int) -> dict[str, npt.NDArray[np.generic]] | None:
    """Return the tensors that a probe saved after a step, or None."""
    path = folder / f"step-{step}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return {str(name): file[str(index)] for index, name in enumerate(file["names"])}
