"""Write digests of a trial's steps, for comparing two runs.

A file has the frames of a ledger: a header with facts about the run, then rows of step digests,
lists of tensor names, and digests of the tensors in the preceding list.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from detcore.contract.errors import StorageFullError
from detcore.data.ledger import FrameFile, FrameKind, pack_frame
from detcore.environment import read_variables

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.data.replayed_steps import ReplayedSteps, ResumeComparison


_logger = logging.getLogger("detcore.data")

# A step and the digests of its record ids, its content and its metrics; 0 if unknown.
_ROW = struct.Struct("<QQQQ")
_FORMAT_VERSION = 1
# Digesting all tensors costs as much as a few short steps, so short units share a digest.
_MIN_STATE_STEPS, _MIN_STATE_DIGESTS = 50, 20
_MAX_STATE_PERIODS, _PERIODS_BEFORE_DOUBLING = 8, 4
# Kinds of NumPy types whose buffer contains the values.
_WITH_BUFFER = frozenset("biufcmMSU")
_Content: TypeAlias = Iterable[npt.ArrayLike] | Callable[[], Iterable[npt.ArrayLike]]
# A different number of threads, or different kernels, change the order of sums.
_NUMERIC_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS",
    "XLA_FLAGS",
)  # fmt: skip


class StepDigests:
    """Records digests of 8 bytes of the batch, the metrics and the state of each step.

    Like the ledger, the file consists of complete frames, which the kernel gets at each report.
    Calls must come from one thread.

    Args:
        path: File to write, ``digests-<run_id>.bin`` in the trial's directory. It must not exist.
        run_id: Number of this start of the trial, from 1.
        start_step: Number of steps completed when the run started.
        every: Record each step that is a multiple of this; >= 1. See also `note_checkpoint`.
        rank: Index of this worker.
        world_size: Number of workers. Each writes a separate file.

    Attributes:
        every: The argument `every`.
        reads_each_state: Whether the state is read between any two steps, as in a replay. A
            controller that trains many batches in one call then trains them one by one.
    """

    reads_each_state = False

    def __init__(
        self,
        path: Path,
        *,
        run_id: int,
        start_step: int,
        every: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.every = every
        self._file = FrameFile(
            path, self._pack_header, "step digests", "reproducibility.step_digests"
        )
        self._facts: dict[str, object] = {
            "run_id": run_id,
            "start_step": start_step,
            "every": every,
            "rank": rank,
            "world_size": world_size,
        }
        self._rows: dict[int, list[int]] = {}
        self._metrics: list[tuple[int, Sequence[Mapping[str, float]]]] = []
        self._names: tuple[str, ...] = ()
        self._tensors: Callable[[], Mapping[str, npt.ArrayLike]] | None = None
        self._state_step = start_step
        self._first_step = start_step + 1
        self._is_full = False
        self._replayed: ReplayedSteps | None = None
        self._on_compared: Callable[[ResumeComparison], object] | None = None

    @classmethod
    def for_trial(
        cls,
        info: TrialInfo,
        *,
        every: int,
        rank: int = 0,
        world_size: int = 1,
        on_compared: Callable[[ResumeComparison], object] | None = None,
    ) -> StepDigests:
        """Return the step digests of a trial's worker, in the trial's directory.

        A resumed run is compared with the digests of the earlier run.

        Args:
            info: The trial.
            every: Record each step that is a multiple of this; >= 1.
            rank: Index of this worker.
            world_size: Number of workers.
            on_compared: Called once in a resumed run: at the first difference, or when all steps of
                the earlier run were compared.
        """
        folder = Path(info.trial_dir)
        digests = cls(
            folder / cls.file_name(info.run_id, rank=rank),
            run_id=info.run_id,
            start_step=info.steps_completed,
            every=every,
            rank=rank,
            world_size=world_size,
        )
        if info.latest_checkpoint is not None:
            from detcore.data.digest_file import read_digests
            from detcore.data.replayed_steps import ReplayedSteps

            earlier = read_digests(folder, rank=rank, first=True)
            digests._replayed = ReplayedSteps(earlier, info.steps_completed)
            digests._on_compared = on_compared
        return digests

    @staticmethod
    def file_name(run_id: int, *, rank: int = 0) -> str:
        """Return the name of a worker's file for a run of the trial."""
        return f"digests-{run_id}-{rank}.bin" if rank else f"digests-{run_id}.bin"

    def describe(self, **facts: object) -> None:
        """Add facts about the run, such as ``threads=4``, before the first flush; JSON values."""
        self._facts.update(facts)

    def watch(
        self,
        tensors: Callable[[], Mapping[str, npt.ArrayLike]] | None,
        digests: Mapping[str, int] | None = None,
    ) -> None:
        """Set the function that returns the training state, and digest the current state.

        Args:
            tensors: Such as `detcore.trial.SupportsStateTensors.state_tensors`; None if unknown.
            digests: The digests of the current state, if they are known, as from `digest_array`.
        """
        self._tensors = tensors
        self.describe(has_state=tensors is not None)
        if digests is None:
            self.digest_state(self._state_step)
        elif not self._is_full:
            self._append_state(self._state_step, digests)

    def is_recorded(self, step: int) -> bool:
        """Whether a step is recorded: each `every`-th, and the first after the last checkpoint."""
        return step % self.every == 0 or step == self._first_step

    def note_checkpoint(self, steps_completed: int) -> None:
        """Also record the first step after a checkpoint, which a resumed run trains again."""
        self._first_step = steps_completed + 1

    def watch_script(self, tensors: Callable[[], Mapping[str, npt.ArrayLike]]) -> None:
        """Set the function that returns the state of a script; see `watch`.

        A restored state is not digested, because the script's validation or hooks may have changed
        the state between the report and the checkpoint of a step.
        """
        if self._state_step == 0:
            self.watch(tensors)
        else:
            self._tensors = tensors
            self.describe(has_state=True)

    def log(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: _Content = (),
    ) -> None:
        """Digest the batch of a step before it is trained on; further batches of a step are added.

        Args:
            step: Number of batches completed after this step, so the first step of a trial is 1.
            record_ids: Integers, ``(n,)``; None if unknown.
            content: The batch's arrays in a fixed order, or a function that returns them; empty if
                unknown. It is not read for a step that is not recorded.
        """
        if not self.is_recorded(step) or self._is_full:
            return
        row = self._rows.setdefault(step, [0, 0, 0])
        row[0] = _digest_arrays(() if record_ids is None else (record_ids,), row[0])
        row[1] = _digest_arrays(content() if callable(content) else content, row[1])

    def log_metrics(self, steps_completed: int, metrics: Sequence[Mapping[str, float]]) -> None:
        """Digest the metrics of the last steps, oldest first.

        Args:
            steps_completed: The step of the last metrics.
            metrics: Numbers by name.
        """
        if not self._is_full:
            self._metrics.append((steps_completed, metrics))

    def log_state(self, step: int) -> None:
        """Digest the state at a scheduling unit, if enough steps were trained since the last time.

        The state is first digested at most once in 20 digests or 50 steps. This period doubles
        after 4, 8 and 16 periods.
        """
        period = max(_MIN_STATE_STEPS, self.every * _MIN_STATE_DIGESTS)
        longest = period * _MAX_STATE_PERIODS
        while period < longest and step >= period * _PERIODS_BEFORE_DOUBLING:
            period *= 2
        if step // period > self._state_step // period:
            self.digest_state(step)

    def digest_state(self, step: int, tensors: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Digest the training state after a step, if its tensors are known.

        Args:
            step: Number of completed batches.
            tensors: The state; default: the result of the function passed to `watch`.
        """
        if self._is_full or (tensors is None and self._tensors is None):
            return
        self._state_step = step
        if tensors is None:
            assert self._tensors is not None  # one of the two
            tensors = self._tensors()
        self._append_state(step, {name: digest_array(value) for name, value in tensors.items()})

    def _append_state(self, step: int, digests: Mapping[str, int]) -> None:
        names = tuple(digests)
        if names != self._names:
            self._names = names
            self._file.append(pack_frame(FrameKind.NAMES, step, 0, json.dumps(names).encode()))
        body = struct.pack(f"<{len(names)}Q", *digests.values())
        self._file.append(pack_frame(FrameKind.STATE, step, 0, body))
        if self._replayed is not None:
            self._replayed.compare_state(step, digests)

    def flush(self) -> None:
        """Pass everything to the kernel. On a full disk, warn and record no further digests.

        Raises:
            LedgerError: If the file exists already.
        """
        if self._is_full:
            return
        try:
            self._write_frames()
        except (OSError, StorageFullError) as error:
            self._is_full = True
            _logger.warning(
                "the digests of further steps of this run are not recorded, so detcore diverge "
                "must train them again: %s",
                str(error).partition("\n")[0],
            )
        self._announce_comparison()

    def _announce_comparison(self) -> None:
        """Report the comparison with the earlier run, once it is known."""
        if self._replayed is None or self._on_compared is None:
            return
        result = self._replayed.result
        if result.difference is not None or self._is_full or self._replayed.is_over:
            self._replayed = None
            self._on_compared(result)

    def _write_frames(self) -> None:
        for steps_completed, metrics in self._metrics:
            self._digest_metrics(steps_completed, metrics)
        self._metrics.clear()
        if self._rows:
            rows = sorted(self._rows.items())
            if self._replayed is not None:
                for step, row in rows:
                    self._replayed.compare_row(step, row)
            body = b"".join(_ROW.pack(step, *row) for step, row in rows)
            self._file.append(pack_frame(FrameKind.DIGESTS, max(self._rows), 0, body))
            self._rows.clear()
        self._file.flush()

    def _digest_metrics(self, steps_completed: int, metrics: Sequence[Mapping[str, float]]) -> None:
        before = steps_completed - len(metrics)
        steps = [*range(before - before % self.every + self.every, steps_completed + 1, self.every)]
        if before < self._first_step <= steps_completed:
            steps.append(self._first_step)
        for step in steps:
            values = metrics[step - before - 1].values()
            packed = struct.pack(f"<{len(values)}d", *map(float, values))
            self._rows.setdefault(step, [0, 0, 0])[2] = xxhash.xxh3_64_intdigest(packed)

    def close(self) -> None:
        """Flush and close; idempotent."""
        if self._rows or self._metrics:
            self.flush()
        if self._is_full:
            self._file.abandon()
        else:
            self._file.close()

    def _pack_header(self) -> bytes:
        facts = {
            "format": _FORMAT_VERSION,
            **self._facts,
            "versions": _list_loaded_versions(),  # at the first flush, the user's code is imported
            "variables": read_variables(_NUMERIC_VARIABLES),
            "machine": {
                "system": _describe_system(),
                "cpu": _read_cpu_model(),
                "cpus": os.cpu_count(),
            },
        }
        return pack_frame(FrameKind.HEADER, 0, 0, json.dumps(facts).encode())


def digest_array(value: npt.ArrayLike) -> int:
    """Return a digest of an array's bytes, 64 bits."""
    return xxhash.xxh3_64_intdigest(_get_bytes(value))  # type: ignore[arg-type]  # it has a buffer


def _digest_arrays(arrays: Iterable[npt.ArrayLike], previous: int = 0) -> int:
    """Return a digest of the arrays' bytes and a previous digest; without arrays, the latter."""
    hasher = None
    for value in arrays:
        hasher = hasher or xxhash.xxh3_64(seed=previous)
        hasher.update(_get_bytes(value))  # type: ignore[arg-type]  # an array has a buffer
    return hasher.intdigest() if hasher else previous


def convert_array(value: Any) -> npt.NDArray[np.generic]:
    """Return the numbers of an array of any framework, such as a PyTorch tensor on a GPU."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError):
        # A PyTorch tensor with a gradient, on a GPU, or of a type that NumPy does not have.
        if not hasattr(value, "detach"):
            raise
    tensor = value.detach().cpu()
    try:
        return np.asarray(tensor)
    except TypeError:
        return np.asarray(tensor.double())  # exact for bfloat16


def _get_bytes(value: npt.ArrayLike) -> bytes | npt.NDArray[np.generic]:
    """Return the bytes of an array, or their buffer."""
    array = np.ascontiguousarray(convert_array(value))
    if array.dtype.kind in _WITH_BUFFER:
        return array
    # The buffer of objects, such as strings, contains their addresses. bfloat16 has no buffer.
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def _list_loaded_versions() -> dict[str, str]:
    """Return the versions of all imported packages."""
    versions = {"python": platform.python_version()}
    for name, module in sorted(sys.modules.items()):
        # Not getattr, because a package's __getattr__ may warn or import modules.
        version = None if "." in name else getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str):
            versions[name] = version
    return versions


def _describe_system() -> str:
    """Return the result of `platform.platform`, which would start a process, without a process."""
    libc = "".join(platform.libc_ver())
    parts = (platform.system(), platform.release(), platform.machine())
    return "-".join([*parts, *(["with", libc] if libc else [])])


def _read_cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in text.splitlines() if "model name" in line), "")
