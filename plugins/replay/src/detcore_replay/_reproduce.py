"""Train a bundle's trial again until it fails, and compare the failure."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint import copy_checkpoint
from detcore.errors import ConfigError, DetcoreError, RunError, in_one_line
from detcore.launch.worker import is_trial_class
from detcore.storage import StorageBackend, open_storage
from detcore_replay._before import version_notes
from detcore_replay._bundle_file import CODE, DIGESTS, Bundle
from detcore_replay._compare import DATA_CHANGED, Difference, find_first
from detcore_replay._digest_file import DigestedRun, read_digests, read_step
from detcore_replay._failing import Outcome, read_outcome
from detcore_replay._replay import link_data, make_environment, start_process, worker_words

if TYPE_CHECKING:
    from detcore.cli import CliContext


_MASK = "********"
_TAIL_LINES = 12
_LOOK_EVERY_S, _STACKS_S = 0.2, 2.0
_SIGNALED = 128
_RANK, _STACK = re.compile(r"\[rank=\d+\] "), "(most recent call first)"
_ADDRESS = re.compile(r"0x[0-9a-f]+|\*{4,}|/\S*/")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How the repeated training of a bundle compares with the failure.

    Attributes:
        original: The failure in words, with its step.
        repeated: How the repeated training ended, in words, with its step.
        is_same_error: Whether it ended with the same exception, or by the same signal.
        is_same_batch: Whether it ended in the same batch.
        is_hang: Whether it hung and was killed.
        record_ids: Ids of the records of that batch; empty: not known.
        found: The first difference of the digests before the failure, or None.
        notes: Limits of the answer.
        tail: The last lines of its output; after a hang, where each worker's main thread was.
    """

    original: str
    repeated: str
    is_same_error: bool
    is_same_batch: bool
    is_hang: bool
    record_ids: tuple[int, ...]
    found: Difference | None
    notes: tuple[str, ...]
    tail: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the failure was repeated."""
        return self.is_same_error and self.is_same_batch


def reproduce_failure(
    bundle: Bundle, obj: CliContext, scratch: Path, *, checkpoint: Path | None
) -> Reproduction:
    """Train a bundle's trial from its checkpoint until it fails.

    Args:
        bundle: The bundle.
        obj: The command's settings.
        scratch: An empty folder.
        checkpoint: A copy of its checkpoint; None: it is read from where it was saved.

    Raises:
        RunError: If something that it needs is missing; the message names it.
    """
    _check_reproducible(bundle)
    for name in ("trial", "checkpoints", "home", "code", "original"):
        (scratch / name).mkdir()
    code = scratch / "code"
    bundle.unpack(CODE, code)
    link_data(Path(bundle.info.model_dir), code)
    original = _read_original(bundle, scratch / "original")
    source = _fetch(bundle, obj, scratch / "checkpoints", checkpoint)
    record = bundle.record
    stop = original.last.step if original and original.last else record.step or _bound(bundle)
    environment = make_environment(
        bundle.info,
        original.facts if original else {},
        scratch,
        code,
        plugins=obj.plugin_manager(),
        checkpoint=record.checkpoint,
        steps_completed=record.checkpoint_steps,
        source=source,
    )
    words = [str(scratch), str(record.checkpoint_steps), str(stop), "failing"]
    words += worker_words(bundle.info)
    process = start_process(words, code, environment)
    try:
        exit_code = _wait(process, scratch, bundle.info.config.get("hang_timeout_s"))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return _compare(bundle, original, scratch, exit_code)


def _wait(
    process: subprocess.Popen[bytes], scratch: Path, hang_timeout_s: float | None
) -> int | None:
    """Wait for the end of a process; return its exit code, or None if it hung and was killed."""
    step, since = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK_EVERY_S)
            # Of several workers, the process that started them says by which signal one ended.
            return code if code <= _SIGNALED else _SIGNALED - code
        now, last = time.monotonic(), step
        step = read_step(scratch, run_id=1)
        if step != last:
            since = now
        elif hang_timeout_s is not None and now - since >= hang_timeout_s:
            process.send_signal(signal.SIGQUIT)  # it writes its stacks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STACKS_S)
            return None


def _check_reproducible(bundle: Bundle) -> None:
    info = bundle.info
    entrypoint = info.config["entrypoint"]
    if not is_trial_class(entrypoint):
        raise RunError(
            f"the bundle is of a trial that was trained by a command ({entrypoint}).\n"
            "Only trial classes can be trained again from their checkpoint.\n"
            "Its log, stacks, code and the records of its last batch are in the bundle, a zip file."
        )
    if not any(name.startswith(CODE) for name in bundle.files):
        raise RunError("the bundle has no code, so nothing can be trained again.")


def _read_original(bundle: Bundle, folder: Path) -> DigestedRun | None:
    if DIGESTS not in bundle.files:
        return None
    (folder / DIGESTS).write_bytes(bundle.files[DIGESTS])
    return read_digests(folder)


def _bound(bundle: Bundle) -> int:
    """Return a step by which the run had failed, where its last batch is not known."""
    settings = bundle.info.settings
    assert settings is not None  # checked by read_bundle
    return bundle.record.steps_completed + settings.scheduling_unit


def _fetch(bundle: Bundle, obj: CliContext, folder: Path, copy: Path | None) -> str | None:
    """Copy the checkpoint into a folder; return the folder of another trial's to start from.

    Raises:
        RunError: If it is gone.
    """
    uuid, source = bundle.record.checkpoint, bundle.info.source_checkpoint
    wanted = uuid or source
    if wanted is None or (uuid is None and "/" in wanted):
        return source
    target = folder / wanted
    if copy is not None:
        shutil.copytree(copy, target)
        return None if uuid else str(target)
    try:
        with contextlib.closing(_open_storage(bundle, obj, is_source=uuid is None)) as storage:
            copy_checkpoint(storage, wanted, target)
    except (DetcoreError, OSError) as error:
        raise RunError(
            f"checkpoint {wanted} (step {bundle.record.checkpoint_steps}), from which the failure "
            f"is repeated, cannot be read from {bundle.record.storage_url}: {in_one_line(error)}\n"
            "A bundle refers to its checkpoint and does not contain it.\n"
            "Give access to it by the environment's credentials, or pass a copy: --checkpoint DIR"
        ) from error
    return None if uuid else str(target)


def _open_storage(bundle: Bundle, obj: CliContext, *, is_source: bool) -> StorageBackend:
    plugins, home = obj.plugin_manager(), obj.environment.home
    spec = bundle.info.config.get("checkpoint_storage")
    if is_source and bundle.info.source_storage is not None:
        spec = bundle.info.source_storage
    if isinstance(spec, Mapping):
        # Without its secrets: the environment's credentials are used.
        known = {key: value for key, value in spec.items() if value != _MASK}
        with contextlib.suppress(ConfigError):
            return open_storage(known, home=home, plugins=plugins)
    return open_storage(bundle.record.storage_url, home=home, plugins=plugins)


def _compare(
    bundle: Bundle, original: DigestedRun | None, scratch: Path, exit_code: int | None
) -> Reproduction:
    record, outcome, mine = bundle.record, read_outcome(scratch), read_digests(scratch)
    last = original.last if original else None
    notes = [*version_notes("the run", original, mine), *_masked_notes(bundle)]
    if last is not None:
        first = last.step if last.is_exact else last.step - 1
        where = f"step {last.step}" if last.is_exact else f"step {first} or {last.step}"
        is_same_batch = first <= outcome.step <= last.step
        again = mine.last if mine else None
        if is_same_batch and again is not None and again.content and last.content:
            is_same_batch = (again.content, again.record_ids) == (last.content, last.record_ids)
            if not is_same_batch:
                notes.append(DATA_CHANGED)
    elif record.step:
        where = f"step {record.step}"
        is_same_batch = outcome.step == record.step
    else:
        steps = record.steps_completed
        where = f"after step {steps}, the last one that it reported"
        is_same_batch = steps <= outcome.step <= _bound(bundle)
    text = (scratch / "output.txt").read_text(encoding="utf-8", errors="replace")
    return Reproduction(
        original=f"{where}: {record.error}{f' ({record.fault})' if record.fault else ''}",
        repeated=_describe(outcome, exit_code),
        is_same_error=_is_same_error(bundle, outcome, exit_code),
        is_same_batch=is_same_batch,
        record_ids=(last.record_ids or ()) if last else (),
        is_hang=exit_code is None,
        found=_find_difference(original, mine, outcome.step),
        notes=tuple(notes),
        tail=_tail(text, is_hang=exit_code is None),
    )


def _find_difference(
    original: DigestedRun | None, mine: DigestedRun | None, until: int
) -> Difference | None:
    if original is None or mine is None:
        return None
    # The step that failed may have been cut short in one of them.
    return find_first(original, mine, until=until - 1)


def _is_same_error(bundle: Bundle, outcome: Outcome, exit_code: int | None) -> bool:
    record = bundle.record
    if record.is_hang or exit_code is None:
        return record.is_hang and exit_code is None
    if record.exit_code < 0 or exit_code < 0:
        return record.exit_code == exit_code
    if outcome.kind is None:
        return False
    kind, _, place = (record.fault or "").partition(" at ")
    if kind and kind != outcome.kind:
        return False
    # Masked secrets, addresses and folders differ.
    is_same_text = _ADDRESS.sub("*", record.error) == _ADDRESS.sub("*", outcome.message)
    return is_same_text or (bool(place) and place == outcome.place)


def _describe(outcome: Outcome, exit_code: int | None) -> str:
    where = f"step {outcome.step}" if outcome.step else "before its first batch"
    if exit_code is None:
        return f"{where}: it hangs (hang_timeout_s)"
    if exit_code < 0:
        return f"{where}: killed by {signal.Signals(-exit_code).name}"
    if outcome.kind is None:
        how = "no error" if exit_code == 0 else f"it ended with exit code {exit_code}"
        return f"{where}: {how}"
    place = f" ({outcome.kind} at {outcome.place})" if outcome.place else ""
    return f"{where}: {outcome.message}{place}"


def _tail(text: str, *, is_hang: bool) -> tuple[str, ...]:
    """Return the last lines; after a hang, the innermost calls of each worker's main thread."""
    lines = text.splitlines()
    stacks: dict[str, list[str]] = {}
    for line in lines if is_hang else ():
        # The lines of several workers alternate.
        prefix = found[0] if (found := _RANK.match(line)) else ""
        if _STACK in line:  # the main thread's is the last one
            stacks[prefix] = []
        if prefix in stacks:
            stacks[prefix].append(line)
    shown = [line for _, stack in sorted(stacks.items()) for line in stack[:_TAIL_LINES]]
    return tuple(shown or lines[-_TAIL_LINES:])


def _masked_notes(bundle: Bundle) -> list[str]:
    names = [
        name
        for name in bundle.record.masked
        if not name.startswith(("config.checkpoint_storage", "source_storage"))
    ]
    return [f"secrets are masked in the bundle: {', '.join(names)}"] if names else []
