"""Write a bundle of a trial that failed: the action ``on_failure: bundle``."""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.data import FrameKind, StepDigests
from detcore.database import read_log_page
from detcore.describe import Redactor, format_bytes, visible_config
from detcore.environment import child_environment
from detcore.errors import LedgerError
from detcore.launch.worker import is_trial_class
from detcore.trial import list_code
from detcore_replay._bundle_file import CODE, DIGESTS, LOG, STACKS, BundleRecord, pack
from detcore_replay._digest_file import read_step
from detcore_replay._frames import scan_frames

if TYPE_CHECKING:
    from detcore.hooks import TrialFailure


_MOST_BYTES = 5 << 20
_MEMBER_BYTES = 256  # of the archive, for each file
_LOG_BYTES, _LOG_LINES, _STACK_BYTES = 256 << 10, 400, 256 << 10
_KEPT = (FrameKind.HEADER, FrameKind.NAMES, FrameKind.LAST_BATCH, FrameKind.LAST_CONTENT)


def write_bundle(failure: TrialFailure) -> str:
    """Write the bundle of a trial into its folder; return a line for the user."""
    info = failure.trial
    code = _read_code(Path(info.code_dir or info.model_dir))
    redactor = Redactor(info.config, child_environment({}), code.values())
    plain = json.loads(json.dumps(dataclasses.asdict(info), default=str))
    visible = visible_config(plain)
    masked = sorted(_differing("", plain, visible))
    files, left_out = _fit(_collect(failure, code, redactor, masked))
    record = BundleRecord(
        trial=_map_texts(visible, redactor.redact_code),
        error=redactor.redact(failure.error),
        fault=_without_folder(failure.fault),
        exit_code=failure.exit_code,
        steps_completed=failure.steps_completed,
        storage_url=redactor.redact(failure.storage_url),
        checkpoint=failure.checkpoint,
        checkpoint_steps=failure.checkpoint_steps,
        step=read_step(Path(info.trial_dir), run_id=info.run_id),
        is_hang=failure.is_hang,
        masked=masked,
        left_out=left_out,
    )
    path = Path(info.trial_dir) / f"bundle-{info.run_id}.zip"
    pack(path, record, files)
    size = format_bytes(path.stat().st_size)
    names = [name for name in masked if name.startswith(CODE)]
    starred = f"; secrets are starred in its {', '.join(names)}" if names else ""
    is_repeatable = is_trial_class(info.config["entrypoint"])
    use = (
        f"repeat it with: detcore reproduce {path}"
        if is_repeatable
        else "it has log, stacks and code, but detcore reproduce repeats trial classes only, "
        "not scripts"
    )
    return f"bundle of its failure: {path} ({size}{starred}); {use}"


def _read_code(folder: Path) -> dict[str, str]:
    """Return the files of the code by name, the smallest first."""
    texts = {
        name: (folder / name).read_bytes().decode("utf-8", "surrogateescape")
        for name in list_code(folder)
    }
    return dict(sorted(texts.items(), key=lambda item: len(item[1])))


def _collect(
    failure: TrialFailure, code: Mapping[str, str], redactor: Redactor, masked: list[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a bundle, the most important ones first; note code with a secret."""
    info = failure.trial
    trial_dir = Path(info.trial_dir)
    for path in sorted(trial_dir.glob(f"traceback-run{info.run_id}-rank*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")[-_STACK_BYTES:]
        yield STACKS + path.name, redactor.redact(text).encode()
    yield LOG, redactor.redact(_log_tail(trial_dir)).encode()
    for name, text in code.items():
        redacted = redactor.redact_code(text)
        if redacted != text:
            masked.append(CODE + name)
        yield CODE + name, redacted.encode("utf-8", "surrogateescape")
    digests = trial_dir / StepDigests.file_name(info.run_id)
    if digests.exists():
        yield DIGESTS, _trim(digests, after=failure.checkpoint_steps)


def _fit(found: Iterator[tuple[str, bytes]]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files for which there is room, and the names of the others."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    left = _MOST_BYTES - (256 << 10)  # for the record itself
    for name, content in found:
        size_bytes = len(zlib.compress(content)) + _MEMBER_BYTES
        if size_bytes > left:
            left_out.append(name)
            continue
        left -= size_bytes
        files[name] = content
    return files, left_out


def _log_tail(trial_dir: Path) -> str:
    path = trial_dir / "log.jsonl"
    start = max(0, path.stat().st_size - _LOG_BYTES) if path.exists() else 0
    lines, _ = read_log_page(trial_dir, start)
    shown = [f"[rank {line.rank} {line.stream}] {line.text}" for line in lines[-_LOG_LINES:]]
    return "\n".join(shown)


def _trim(path: Path, *, after: int) -> bytes:
    """Return a file of digests without the frames of steps before the checkpoint."""
    content = path.read_bytes()
    kept: list[bytes] = []
    start = 0
    try:
        for frame in scan_frames(path, memoryview(content)):
            end = frame.offset + frame.size_bytes
            if frame.kind in _KEPT or frame.step >= after:
                kept.append(content[start:end])
            start = end
    except LedgerError:
        pass  # the whole frames before the damage are of use
    return b"".join(kept)


def _without_folder(fault: str | None) -> str | None:
    return None if fault is None else re.sub(r" at .*/", " at ", fault)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(each, change) for key, each in value.items()}
    return [_map_texts(each, change) for each in value] if isinstance(value, list) else value


def _differing(prefix: str, one: Any, other: Any) -> Iterator[str]:
    """Yield the dotted names of the values that differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in one:
            yield from _differing(f"{prefix}.{key}" if prefix else str(key), one[key], other[key])
    elif one != other:
        yield prefix
