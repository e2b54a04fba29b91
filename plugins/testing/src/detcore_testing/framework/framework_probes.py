"""Programs that inspect a plugin in a separate process: ``python -m ... NAME JSON``."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_NUM_TRAINED = 2  # batches between a snapshot and its writing
_OWN_FILES = {"manifest.json", "metadata.json", "clock.json", "trial.json"}


def discover(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Find the plugins and their frameworks; return the modules that this has imported."""
    from detcore.environment import read_environment
    from detcore.plugins import PluginManager, diagnose

    plugins = PluginManager(read_environment(), on_problem=lambda problem: None)
    frameworks = plugins.frameworks()
    modules = sorted(sys.modules)  # before anything of the framework is imported
    name = arguments["framework"]
    found = frameworks.get(name)
    provider = plugins.find_framework_provider(name).name if found else None
    problems = [str(problem) for problem in diagnose(plugins) if provider in (None, problem.plugin)]
    if found is None:
        return {"known": sorted(frameworks), "problems": problems}
    return {
        "known": sorted(frameworks),
        "problems": problems + _unimportable(found),
        "modules": modules,
        "requires": [*found.requires, *found.related],
        "several_workers": found.several_workers,
        "load_checkpoint": found.load_checkpoint,
        "inexact_resume": found.inexact_resume,
    }


def use(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Use a controller outside of a run.

    Restores a checkpoint, validates twice, and saves in every way that the controller supports.
    """
    from detcore.environment import read_environment
    from detcore.plugins import PluginManager
    from detcore.trial import (
        SteppingController,
        SupportsSnapshot,
        SupportsStateTensors,
        SupportsTensors,
        import_object,
        import_trial_class,
    )
    from detcore_replay import create_trial_instance

    framework = PluginManager(read_environment()).frameworks()[arguments["framework"]]
    found: dict[str, Any] = {}
    model_dir, folder = Path.cwd(), Path(arguments["folder"])
    sys.path.insert(0, str(model_dir))
    trial_class = import_trial_class(arguments["entrypoint"], model_dir)
    trial: Any = create_trial_instance(trial_class, folder / "instance", arguments["config"])
    controller = import_object(framework.controller)(trial, _context_of(trial))
    found["batches_per_epoch"] = controller.batches_per_epoch()
    controller.restore(Path(arguments["checkpoint"]))
    states: dict[str, dict[str, str]] = {}
    names_state = isinstance(controller, SupportsStateTensors)
    if names_state:
        states = {when: _digest_state(controller) for when in ("at first", "once more")}
    found["validations"] = [_metrics(controller.validate()) for _ in range(2)]
    found["snapshot"] = isinstance(controller, SupportsSnapshot)
    is_stepping = isinstance(controller, SteppingController)
    found["num_trained"] = _NUM_TRAINED if found["snapshot"] and is_stepping else 0
    ways: dict[str, Callable[[Path], object]] = {"save": controller.save, "again": controller.save}
    if found["snapshot"]:
        ways["snapshot"] = lambda path: _snapshot(controller, path, found["num_trained"])
    for way, write in ways.items():
        (folder / way).mkdir()
        write(folder / way)
        if names_state and way == "again":
            states["after validations and saves"] = _digest_state(controller)
    if isinstance(controller, SupportsTensors):
        found["tensors"] = [info.file for info in controller.tensors()]
    found["files"] = [path.name for path in (folder / way).iterdir()]
    if names_state:
        for when, name in (("restored again", "checkpoint"), ("first", "first_checkpoint")):
            controller.restore(Path(arguments[name]))
            states[when] = _digest_state(controller)
    found["states"] = states
    found["start_from"] = hasattr(controller, "start_from")
    found["unread"] = _find_unread_files(controller, Path(arguments["checkpoint"]), folder)
    found["refusals"] = _refusals(controller, Path(arguments["checkpoint"]), folder)
    controller.close()
    return found


def _digest_state(controller: Any) -> dict[str, str]:
    """Return a digest of each tensor that the controller names; gradients do not outlive a step."""
    import numpy as np

    digests = {}
    for name, value in controller.state_tensors().items():
        array = np.asarray(value)
        what = "objects" if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
        if not name.startswith("gradient."):
            digests[name] = f"{array.dtype.name} {array.shape} {what}"
    return digests


def _snapshot(controller: Any, directory: Path, num_batches: int) -> None:
    """Take a snapshot, train `num_batches` more batches, then write the snapshot."""
    write = controller.snapshot(directory)
    if num_batches:
        controller.train(num_batches)
    write()


def _unimportable(framework: Any) -> list[str]:
    """Return the names of a framework that cannot be imported, with the reason."""
    from detcore.trial import import_object

    fields = ("trial_class", "context_class", "controller", "prepare_worker", "load_checkpoint")
    faults = []
    for field in (*fields, "native_init"):
        value = getattr(framework, field)
        try:
            if value is not None:
                import_object(value)
        except (ImportError, AttributeError) as error:
            faults.append(f"{field}={value!r}: {type(error).__name__}: {error}")
    return faults


def _find_unread_files(controller: Any, checkpoint: Path, folder: Path) -> list[str]:
    """Return the framework's files in a checkpoint that a restore does not read.

    Python reports which files it opens. A file that nothing in Python opens, because compiled code
    may read it, is overwritten in a copy: a restore that reads it fails.
    """
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            opened.add(os.path.realpath(os.fsdecode(arguments[0])))

    sys.addaudithook(note)  # for the rest of this process
    controller.restore(checkpoint)
    read = frozenset(opened)
    names = []
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        is_own = name in _OWN_FILES or name.startswith("code/")
        if not path.is_file() or is_own or os.path.realpath(path) in read:
            continue
        copy = folder / "overwritten"
        shutil.copytree(checkpoint, copy)
        (copy / name).write_bytes(b"overwritten by the suite")
        try:
            controller.restore(copy)
            names.append(name)
        except Exception:  # noqa: BLE001  (it was read)
            pass
        shutil.rmtree(copy)
    return names


def _refusals(controller: Any, checkpoint: Path, folder: Path) -> dict[str, str]:
    """Return what restoring damaged checkpoints raises, by the damage."""
    from detcore.trial import SupportsTensors

    empty, cut = folder / "empty", folder / "cut"
    empty.mkdir()
    shutil.copytree(checkpoint, cut)
    files = [path for path in cut.iterdir() if path.is_file() and path.name not in _OWN_FILES]
    if isinstance(controller, SupportsTensors):  # others, such as a drawing, may not be read
        held = {info.file for info in controller.tensors()}
        files = [path for path in files if path.name in held] or files
    max(files, key=lambda path: path.stat().st_size).write_bytes(b"")
    told = {}
    for name, path in {"an empty folder": empty, "a checkpoint with an empty file": cut}.items():
        try:
            controller.restore(path)
            told[name] = ""
        except Exception as error:  # noqa: BLE001  (a refusal is what is asked for)
            told[name] = f"{type(error).__name__}: {error}"
    return told


def load(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Load a checkpoint as a user of the client does."""
    from detcore.client import Determined

    models = [
        Determined().get_checkpoint(uuid).load(f"{arguments['folder']}-{index}")
        for index, uuid in enumerate(arguments["uuids"])
    ]
    return {
        "type": type(models[0]).__name__,
        "is_none": models[0] is None,
        "digests": [_digest_of(model) for model in models],
    }


def _digest_of(model: Any) -> str | None:
    """Return a digest of a model's numbers; None where it does not show them as most do."""
    import numpy as np

    for name in ("get_weights", "state_dict"):
        if callable(getattr(model, name, None)):
            return _digest_of(getattr(model, name)())
    if isinstance(model, Mapping):
        model = list(model.values())
    if isinstance(model, (list, tuple)):
        parts = [_digest_of(each) for each in model]
        known = [part for part in parts if part is not None]
        return hashlib.sha256("".join(known).encode()).hexdigest() if known else None
    try:
        array = np.asarray(model)
    except Exception:  # noqa: BLE001  (whatever it is: no numbers)
        return None
    if not np.issubdtype(array.dtype, np.floating):
        return None
    return hashlib.sha256(array.tobytes()).hexdigest()


def _context_of(trial: object) -> Any:
    """Return the context that a trial keeps, whatever it calls it."""
    from detcore.trial import TrialContext

    for value in vars(trial).values():
        if isinstance(value, TrialContext):
            return value
    raise LookupError(f"{type(trial).__name__} does not keep the context it was given")


def _metrics(result: Any) -> dict[str, float]:
    metrics = getattr(result, "metrics", result)
    return {str(name): float(value) for name, value in metrics.items()}


def main() -> int:
    """Run the program that the first argument names with the JSON object that is the second.

    The findings go into the file that the object names under ``"answer"``.
    """
    logging.disable(logging.WARNING)
    programs = {"discover": discover, "use": use, "load": load}
    arguments = json.loads(sys.argv[2])
    try:
        found = programs[sys.argv[1]](arguments)
    except Exception as error:  # noqa: BLE001  (handed on: it is the finding)
        found = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    Path(arguments["answer"]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
