"""Programs that inspect a plugin in a separate process. Usage: ``python -m ... NAME JSON``."""

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

_NUM_TRAINED = 2  # batches trained between taking and writing a snapshot
_OWN_FILES = {"manifest.json", "metadata.json", "clock.json", "trial.json", "audit.json"}


def discover(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Find the plugins and their frameworks, and return the imported modules."""
    from detcore.environment import read_environment
    from detcore.plugins import PluginManager, diagnose

    plugins = PluginManager(read_environment(), on_problem=lambda problem: None)
    frameworks = plugins.frameworks()
    modules = sorted(sys.modules)  # before the framework is imported
    name = arguments["framework"]
    framework = frameworks.get(name)
    provider = plugins.find_framework_provider(name).name if framework else None
    problems = [str(problem) for problem in diagnose(plugins) if provider in (None, problem.plugin)]
    if framework is None:
        return {"frameworks": sorted(frameworks), "problems": problems}
    return {
        "frameworks": sorted(frameworks),
        "problems": problems + _find_import_faults(framework),
        "modules": modules,
        "requires": [*framework.requires, *framework.related],
        "several_workers": framework.several_workers,
        "load_checkpoint": framework.load_checkpoint,
        "inexact_resume": framework.inexact_resume,
    }


def use(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Use a controller outside a run.

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
    findings: dict[str, Any] = {}
    model_dir, folder = Path.cwd(), Path(arguments["folder"])
    sys.path.insert(0, str(model_dir))
    trial_class = import_trial_class(arguments["entrypoint"], model_dir)
    trial: Any = create_trial_instance(trial_class, folder / "instance", arguments["config"])
    controller = import_object(framework.controller)(trial, _find_context(trial))
    findings["batches_per_epoch"] = controller.batches_per_epoch()
    controller.restore(Path(arguments["checkpoint"]))
    states: dict[str, dict[str, str]] = {}
    has_state_tensors = isinstance(controller, SupportsStateTensors)
    if has_state_tensors:
        states = {when: _digest_state(controller) for when in ("at first", "once more")}
    findings["validations"] = [_read_metrics(controller.validate()) for _ in range(2)]
    findings["snapshot"] = isinstance(controller, SupportsSnapshot)
    is_stepping = isinstance(controller, SteppingController)
    findings["num_trained"] = _NUM_TRAINED if findings["snapshot"] and is_stepping else 0
    methods: dict[str, Callable[[Path], object]] = {
        "save": controller.save,
        "again": controller.save,
    }
    if findings["snapshot"]:
        methods["snapshot"] = lambda path: _save_snapshot(controller, path, findings["num_trained"])
    for name, write in methods.items():
        (folder / name).mkdir()
        write(folder / name)
        if has_state_tensors and name == "again":
            states["after validations and saves"] = _digest_state(controller)
    if isinstance(controller, SupportsTensors):
        findings["tensors"] = [info.file for info in controller.tensors()]
    findings["files"] = [path.name for path in (folder / name).iterdir()]
    if has_state_tensors:
        for when, name in (("restored again", "checkpoint"), ("first", "first_checkpoint")):
            controller.restore(Path(arguments[name]))
            states[when] = _digest_state(controller)
    findings["states"] = states
    findings["start_from"] = hasattr(controller, "start_from")
    findings["unread"] = _find_unread_files(controller, Path(arguments["checkpoint"]), folder)
    findings["refusals"] = _restore_damaged(controller, Path(arguments["checkpoint"]), folder)
    controller.close()
    return findings


def _digest_state(controller: Any) -> dict[str, str]:
    """Return a digest of each state tensor, without gradients, which do not outlive a step."""
    import numpy as np

    digests = {}
    for name, value in controller.state_tensors().items():
        array = np.asarray(value)
        is_object = array.dtype.hasobject
        digest = "objects" if is_object else hashlib.sha256(array.tobytes()).hexdigest()
        if not name.startswith("gradient."):
            digests[name] = f"{array.dtype.name} {array.shape} {digest}"
    return digests


def _save_snapshot(controller: Any, directory: Path, num_batches: int) -> None:
    """Take a snapshot, train `num_batches` more batches, then write the snapshot."""
    write = controller.snapshot(directory)
    if num_batches:
        controller.train(num_batches)
    write()


def _find_import_faults(framework: Any) -> list[str]:
    """Return the fields of a framework that cannot be imported, with the reasons."""
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
    """Return the framework's checkpoint files that restore does not read.

    An audit hook reports the files that Python opens. Compiled code may read other files, so each
    of these is overwritten in a copy of the checkpoint. A restore that reads the file then fails.
    """
    opened: set[str] = set()

    def record_open(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            opened.add(os.path.realpath(os.fsdecode(arguments[0])))

    sys.addaudithook(record_open)  # cannot be removed
    controller.restore(checkpoint)
    read_paths = frozenset(opened)
    names = []
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        is_own = name in _OWN_FILES or name.startswith("code/")
        if not path.is_file() or is_own or os.path.realpath(path) in read_paths:
            continue
        copy = folder / "overwritten"
        shutil.copytree(checkpoint, copy)
        (copy / name).write_bytes(b"overwritten by the suite")
        try:
            controller.restore(copy)
            names.append(name)
        except Exception:  # noqa: BLE001  (restore read the file)
            pass
        shutil.rmtree(copy)
    return names


def _restore_damaged(controller: Any, checkpoint: Path, folder: Path) -> dict[str, str]:
    """Restore damaged checkpoints and return the errors, by damage."""
    from detcore.trial import SupportsTensors

    empty, cut = folder / "empty", folder / "cut"
    empty.mkdir()
    shutil.copytree(checkpoint, cut)
    files = [path for path in cut.iterdir() if path.is_file() and path.name not in _OWN_FILES]
    if isinstance(controller, SupportsTensors):  # restore may not read other files
        names = {info.file for info in controller.tensors()}
        files = [path for path in files if path.name in names] or files
    max(files, key=lambda path: path.stat().st_size).write_bytes(b"")
    errors = {}
    for name, path in {"an empty directory": empty, "a checkpoint with an empty file": cut}.items():
        try:
            controller.restore(path)
            errors[name] = ""
        except Exception as error:  # noqa: BLE001  (restore is expected to fail)
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


def load(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Load checkpoints with the client."""
    from detcore.client import Determined

    models = [
        Determined().get_checkpoint(uuid).load(f"{arguments['folder']}-{index}")
        for index, uuid in enumerate(arguments["uuids"])
    ]
    return {
        "type": type(models[0]).__name__,
        "is_none": models[0] is None,
        "digests": [_digest_model(model) for model in models],
    }


def _digest_model(model: Any) -> str | None:
    """Return a digest of a model's weights, or None if they cannot be read."""
    import numpy as np

    for name in ("get_weights", "state_dict"):
        if callable(getattr(model, name, None)):
            return _digest_model(getattr(model, name)())
    if isinstance(model, Mapping):
        model = list(model.values())
    if isinstance(model, (list, tuple)):
        parts = [_digest_model(part) for part in model]
        digests = [part for part in parts if part is not None]
        return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else None
    try:
        array = np.asarray(model)
    except Exception:  # noqa: BLE001  (the object has no numbers)
        return None
    if not np.issubdtype(array.dtype, np.floating):
        return None
    return hashlib.sha256(array.tobytes()).hexdigest()


def _find_context(trial: object) -> Any:
    """Return the context stored in a trial's attributes."""
    from detcore.trial import TrialContext

    for value in vars(trial).values():
        if isinstance(value, TrialContext):
            return value
    raise LookupError(f"{type(trial).__name__} does not store its context")


def _read_metrics(result: Any) -> dict[str, float]:
    metrics = getattr(result, "metrics", result)
    return {str(name): float(value) for name, value in metrics.items()}


def main() -> int:
    """Run the program named by the first argument with the JSON object in the second argument.

    The findings are written to the file named by the object's field ``"answer"``.
    """
    logging.disable(logging.WARNING)
    programs = {"discover": discover, "use": use, "load": load}
    arguments = json.loads(sys.argv[2])
    try:
        findings = programs[sys.argv[1]](arguments)
    except Exception as error:  # noqa: BLE001  (reported as the finding)
        findings = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    Path(arguments["answer"]).write_text(json.dumps(findings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
