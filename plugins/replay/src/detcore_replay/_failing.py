"""The process that repeats a failure: how far it came, and how it ended."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy.typing as npt

from detcore.core import DistributedContext, describe_cause
from detcore.data import StepDigests
from detcore.errors import PeerLostError
from detcore_replay._digest_file import read_step
from detcore_replay._probe import ReplayEnd


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a repeated training ended.

    Attributes:
        kind: Class of the exception; None: there was no exception.
        message: Its class and its cause, in one line, as a run records it; after the worker's rank
            unless that is the chief.
        place: File and line that raised it, without the folder, such as ``"model_def.py:3"``.
        step: The last step that began; 0: none.
    """

    kind: str | None = None
    message: str = ""
    place: str | None = None
    step: int = 0


class FailureProbe(StepDigests):
    """Digests every step, and keeps the one that begins, so that a killed process leaves it.

    Args:
        path: File to write; the step is written next to it.
        start: Steps completed when the process starts.
        stop: The step in or after which the run failed: training ends when it is over.
        place: This worker's place.
    """

    reads_each_state = True

    def __init__(self, path: Path, *, start: int, stop: int, place: DistributedContext) -> None:
        super().__init__(
            path,
            run_id=1,
            start_step=start,
            rank=place.rank,
            world_size=place.size,
            keeps_step=True,
        )
        self._stop = stop

    def log(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: Iterable[npt.ArrayLike] | Callable[[], Iterable[npt.ArrayLike]] = (),
        *,
        is_exact: bool = True,
    ) -> None:
        if step > self._stop:
            raise ReplayEnd
        super().log(step, record_ids, content, is_exact=is_exact)


def write_outcome(folder: Path, error: Exception, *, rank: int) -> None:
    """Write the exception that ended the training of a worker."""
    text = describe_cause(error)
    frames = traceback.extract_tb(error.__traceback__)
    fields = {
        "kind": type(error).__name__,
        "message": f"rank {rank}: {text}" if rank else text,
        "place": f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None,
    }
    (folder / f"outcome-{rank}.json").write_text(json.dumps(fields), encoding="utf-8")


def read_outcome(folder: Path) -> Outcome:
    """Read how a process ended that trained with a `FailureProbe`."""
    read = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("outcome-*.json"))]
    # A worker that lost another one did not fail by itself.
    read.sort(key=lambda fields: bool(fields["kind"] == PeerLostError.__name__))
    fields = read[0] if read else {}
    return Outcome(**fields, step=read_step(folder, run_id=1))
