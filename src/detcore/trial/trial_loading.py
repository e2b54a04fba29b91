"""Read the description of a trial in a checkpoint, and make the trial again."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore.contract.trial import TRIAL_FILE
from detcore.trial.entrypoint import import_trial_class

if TYPE_CHECKING:
    from detcore.contract.trial import TrialContext


def find_checkpoint_directory(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a downloaded checkpoint.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}.\n"
            "The path is that of a checkpoint's folder, as Checkpoint.download() returns it:\n"
            "  detcore checkpoint download UUID"
        )
    return folder


def read_trial_file(folder: Path, framework: str) -> dict[str, Any]:
    """Return the description of a trial in a checkpoint of one framework, its ``trial.json``.

    Args:
        folder: The checkpoint's folder.
        framework: Registered name of the framework that has to have written it.

    Returns:
        ``trial_class`` (import path), ``framework``, ``hparams`` and ``config``, among others. The
        configuration holds the trial's values as ``hyperparameters``.

    Raises:
        InvalidCheckpointError: If there is no such file, if it is damaged, or if another framework
            wrote it.
    """
    path = folder / TRIAL_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written_by, trial_class = record["framework"], record["trial_class"]
        record["config"] = {**record["config"], "hyperparameters": dict(record["hparams"])}
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"{folder} has no {TRIAL_FILE}, so it is no checkpoint of a trial.\n"
            "Weights that another program saved are loaded with the framework itself."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error!r}.\nDownload the checkpoint again."
        ) from error
    if written_by != framework:
        raise InvalidCheckpointError(
            f"{folder} is a checkpoint of the framework {written_by!r} (trial class "
            f"{trial_class}), not of {framework!r}.\n"
            "Each framework's plugin loads its own checkpoints."
        )
    return record


@contextlib.contextmanager
def create_trial_from_code(
    folder: Path,
    trial_class: str,
    context: TrialContext,
    *,
    instead: str,
    aliases: Mapping[str, ModuleType] | None = None,
) -> Iterator[Any]:
    """Make the trial of a checkpoint from the code in it, which can be imported inside the block.

    **This runs code from the checkpoint.**

    Args:
        folder: The checkpoint's folder.
        trial_class: Import path of the class.
        context: Passed to the class.
        instead: Advice for a checkpoint without code; ends the message.
        aliases: Modules to make available under other names inside the block.

    Raises:
        InvalidCheckpointError: If the checkpoint has no code.
        InvalidExperimentError: If the class is not in it.
    """
    code = folder / "code"
    if not code.is_dir():
        raise InvalidCheckpointError(
            f"{folder} has no folder 'code', from which {trial_class!r} would be imported.\n"
            f"{instead}"
        )
    with import_from_directory(code, aliases):
        yield import_trial_class(trial_class, code)(context)


@contextlib.contextmanager
def import_from_directory(
    code: Path, aliases: Mapping[str, ModuleType] | None = None
) -> Iterator[None]:
    """Make imports search a folder first, and undo all changes afterwards.

    Inside the block the folder is also the current folder, as it is for a worker. Imported modules
    of the same names are put back afterwards, and the folder's modules are removed from
    ``sys.modules``; objects created from them stay usable. No bytecode is written into the folder.
    Not thread-safe: ``sys.path``, ``sys.modules`` and the current folder belong to the process.

    Args:
        code: The folder.
        aliases: Modules to make available under other names inside the block.
    """
    code = code.resolve()
    aliases = aliases or {}
    own = _importable(code) | {name.partition(".")[0] for name in aliases}
    modules, path, folder = dict(sys.modules), list(sys.path), Path.cwd()
    writes_bytecode = sys.dont_write_bytecode
    hidden = {name: module for name, module in modules.items() if name.partition(".")[0] in own}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(aliases)
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    os.chdir(code)
    try:
        yield
    finally:
        os.chdir(folder)
        sys.dont_write_bytecode = writes_bytecode
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.modules.update(hidden)
        for entry in [entry for entry in sys.path_importer_cache if _is_inside(entry, code)]:
            del sys.path_importer_cache[entry]


def _importable(code: Path) -> set[str]:
    """Return the top-level names that an import may find in a folder."""
    names = {path.stem for path in code.glob("*.py")}
    names |= {path.name for path in code.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    # The interpreter needs its own modules; a folder cannot replace the imported ones.
    return names - set(sys.stdlib_module_names)


def _is_inside(entry: str, code: Path) -> bool:
    return entry == str(code) or entry.startswith(str(code) + os.sep)
