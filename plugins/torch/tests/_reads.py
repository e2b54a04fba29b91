"""Record which files and JSON keys of a checkpoint a restore reads."""

from __future__ import annotations

import builtins
import dataclasses
import io
import json
import threading
import types
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

__all__ = ["ReadRecorder"]

# Files that belong to detcore itself.
_CORE_FILES = {"clock.json", "manifest.json", "metadata.json", "trial.json"}
# Levels of tracked keys. PyTorch copies an optimizer's whole state.
_DEPTHS = {"optimizer": 0, "worker": 3}


@dataclasses.dataclass
class ReadRecorder:
    """Records reads in this process, or in a process of a `Script`.

    Attributes:
        log: File to which reads are appended.
    """

    code: ClassVar[int] = 0
    log: Path

    def prepare(self, rank: int) -> None:
        """Record the reads of a script's process until it ends."""
        self.install(pytest.MonkeyPatch())

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Record reads from now on."""
        import safetensors

        from detcore_torch.state import state_files

        opened = io.open
        opened_tensors = safetensors.safe_open
        latest = threading.local()  # logs are written in the background

        def open_file(file: Any, *args: Any, **options: Any) -> Any:
            latest.name = Path(file).name if isinstance(file, str | Path) else ""
            self._note("file", latest.name)
            return opened(file, *args, **options)

        def open_tensors(file: Any, *args: Any, **options: Any) -> Any:
            latest.name = Path(file).name
            self._note("file", latest.name)
            return opened_tensors(file, *args, **options)

        patch.setattr(builtins, "open", open_file)
        patch.setattr(io, "open", open_file)
        patch.setattr(safetensors, "safe_open", open_tensors)
        loads = types.SimpleNamespace(
            loads=lambda text: self._tracked(json.loads(text), latest.name), dumps=json.dumps
        )
        patch.setattr(state_files, "json", loads)
        decode_tree = state_files.decode_tree

        def decode_state(state: Any, tensors: Any) -> Any:
            name = latest.name.partition(".")[0]  # the tensors were read just before
            decoded = decode_tree(state, tensors)
            return self._tracked(decoded, f"{name}.state", _DEPTHS.get(name, 2))

        patch.setattr(state_files, "decode_tree", decode_state)

    def find_unread(self, checkpoint: Path) -> set[str]:
        """Return the files of a checkpoint and keys of its documents that were not read."""
        reads = [json.loads(line) for line in self.log.read_text().splitlines()]
        files = {path.name for path in checkpoint.iterdir() if path.is_file()} - _CORE_FILES
        files -= {name for kind, name in reads if kind == "file"}
        keys = {name for kind, name in reads if kind == "key"}
        return files | (keys - {name for kind, name in reads if kind == "read"})

    def _note(self, kind: str, name: str) -> None:
        with io.FileIO(self.log, "a") as file:
            file.write(f"{json.dumps([kind, name])}\n".encode())

    def _tracked(self, value: Any, name: str, depth: int = 9) -> Any:
        if isinstance(value, list):
            return [self._tracked(item, f"{name}[]", depth) for item in value]
        if not isinstance(value, dict) or not depth:
            return value
        for key in value:
            self._note("key", f"{name}.{key}")
        items = {k: self._tracked(item, f"{name}.{k}", depth - 1) for k, item in value.items()}
        return _TrackedDict(items, lambda key: self._note("read", f"{name}.{key}"))


class _TrackedDict(MutableMapping[str, Any], dict[str, Any]):  # type: ignore[misc]
    """A dictionary that reports which keys are read."""

    def __init__(self, items: dict[str, Any], note: Callable[[str], None]) -> None:
        dict.__init__(self, items)
        self._note_key = note

    def __getitem__(self, key: str) -> Any:
        self._note_key(key)
        return dict.__getitem__(self, key)

    def __iter__(self) -> Iterator[str]:
        for key in dict.__iter__(self):
            self._note_key(key)
            yield key

    __contains__ = dict.__contains__  # this is not a read
    __len__ = dict.__len__
    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__
