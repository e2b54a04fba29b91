"""Resolve the entrypoint of an experiment file to a trial class and its framework."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.contract.errors import InvalidExperimentError, PluginNotFoundError, closest_match
from detcore.contract.trial import Trial
from detcore.contract.values import Framework

# Prefix of the packages that users import, one per plugin distribution.
_PLUGIN_PREFIX = "detcore_"
_OLD_NAME = "determined"
_MISSING_NAME = re.compile(r"cannot import name '(\w+)'")


class ImportEnded(BaseException):
    """Raised to stop importing a module that would start an experiment of the trial class.

    Args:
        module: The partially executed module that defines the trial class.
    """

    def __init__(self, module: ModuleType | None) -> None:
        super().__init__("the trial class is defined; the rest of its script is not executed")
        self.module = module


def import_object(name: str) -> Any:
    """Import ``"module:attribute"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def import_trial_class(entrypoint: str, model_dir: Path) -> type[Trial]:
    """Import the user's trial class.

    The caller has added `model_dir` to ``sys.path``. The directory of a file is added here.

    The import of a script that starts an experiment of the class
    (``detcore.client.create``) stops at that call.

    Args:
        entrypoint: ``"module:Class"``, or ``"folder/file.py:Class"`` for a file below `model_dir`.
        model_dir: Directory of the user's code.

    Raises:
        InvalidExperimentError: If the module or the class does not exist, or is not a trial class.
        PluginNotFoundError: If the module imports a plugin that is not installed.
    """
    module_name, _, class_name = entrypoint.rpartition(":")
    try:
        if module_name.endswith(".py"):
            module = _import_file(model_dir / module_name, entrypoint)
        else:
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _explain_missing(error, entrypoint, model_dir) from error
    except ImportError as error:
        raise _explain_missing_name(error, entrypoint) from error
    except ImportEnded as ended:
        if ended.module is None or not hasattr(ended.module, class_name):
            raise InvalidExperimentError(
                f"entrypoint {entrypoint!r}: the module calls create() before it defines the "
                f"class {class_name!r}.\n"
                'Move the call of create() below: if __name__ == "__main__":'
            ) from None
        module = ended.module
        sys.modules[module.__name__] = module
    trial_class = getattr(module, class_name, None)
    if trial_class is None:
        classes = sorted(
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        )
        raise InvalidExperimentError(
            f"entrypoint {entrypoint!r}: {module.__file__} has no class {class_name!r}.\n"
            f"It defines: {', '.join(classes) or 'no class'}."
        )
    if not (isinstance(trial_class, type) and issubclass(trial_class, Trial)):
        raise InvalidExperimentError(
            f"entrypoint {entrypoint!r} names {trial_class!r}, which is not a trial class.\n"
            "A trial class subclasses one that a framework plugin provides, such as "
            "detcore_keras.KerasTrial."
        )
    if missing := sorted(getattr(trial_class, "__abstractmethods__", ())):
        raise InvalidExperimentError(
            f"entrypoint {entrypoint!r}: the class does not define {' and '.join(missing)}.\n"
            f"Each {_framework_class(trial_class)} must define these methods. Check the case of "
            "their names."
        )
    return trial_class


def _framework_class(trial_class: type[Trial]) -> str:
    """Return the name of the class that declares the missing methods of a trial class."""
    name = min(trial_class.__abstractmethods__)  # type: ignore[attr-defined]
    return next(c.__name__ for c in reversed(trial_class.__mro__) if name in vars(c))


def is_importing_trial() -> bool:
    """Whether this thread is executing `import_trial_class`."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is import_trial_class.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # the loop ends at None
    return False


def _import_file(path: Path, entrypoint: str) -> ModuleType:
    """Import a file as a module of its name, and make the files next to it importable."""
    if not path.is_file():
        raise InvalidExperimentError(f"entrypoint {entrypoint!r}: the file {path} does not exist.")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name, number = path.stem, 1
    while name in sys.modules:
        if getattr(sys.modules[name], "__file__", None) == str(path):
            return sys.modules[name]
        number += 1
        name = f"{path.stem}_{number}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # true for every .py file
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _explain_missing(error: ModuleNotFoundError, entrypoint: str, model_dir: Path) -> Exception:
    missing, _, submodule = (error.name or "").partition(".")
    if missing == "detcore" and submodule:
        missing = f"{_PLUGIN_PREFIX}{submodule.partition('.')[0]}"
        if importlib.util.find_spec(missing) is not None:
            return InvalidExperimentError(
                f"entrypoint {entrypoint!r}: module {error.name!r} not found. "
                f"Did you mean {missing!r}?"
            )
    if missing.startswith(_PLUGIN_PREFIX) and importlib.util.find_spec(missing) is None:
        distribution = missing.replace("_", "-")
        return PluginNotFoundError(
            f"the trial class {entrypoint!r} needs the plugin {distribution!r}, "
            "which is not installed.\n"
            f"Install it in this environment ({sys.prefix}):\n"
            f"  pip install {distribution}"
        )
    if missing == _OLD_NAME:
        return PluginNotFoundError(
            f"the trial class {entrypoint!r} imports {error.name!r}, which detcore replaces.\n"
            "Rewrite its imports with:\n"
            "  detcore migrate ."
        )
    if missing == entrypoint.rpartition(":")[0].partition(".")[0]:
        files = sorted(path.stem for path in model_dir.glob("*.py"))
        return InvalidExperimentError(
            f"entrypoint {entrypoint!r}: module {error.name!r} not found in {model_dir}.\n"
            f"Modules there: {', '.join(files) or 'none'}.\n"
            "Pass the directory of your code as the second argument:  detcore run CONFIG MODEL_DIR"
        )
    return error


def _explain_missing_name(error: ImportError, entrypoint: str) -> Exception:
    """Return an error with the closest public name in a plugin's package."""
    match = _MISSING_NAME.match(str(error))
    if match is None or not (error.name or "").startswith(_PLUGIN_PREFIX):
        return error
    closest = closest_match(match[1], dir(sys.modules[error.name or ""]))
    if closest is None:
        return error
    return InvalidExperimentError(
        f"entrypoint {entrypoint!r}: {error.name} has no name {match[1]!r}. "
        f"Did you mean {closest!r}?"
    )


def find_framework(trial_class: type[Trial], frameworks: Mapping[str, Framework]) -> Framework:
    """Return the framework to whose trial class `trial_class` is a subclass.

    Args:
        trial_class: The user's class.
        frameworks: Registered frameworks, by name.

    Raises:
        PluginNotFoundError: If no registered framework matches, or a required module is missing.
    """
    ancestors = {f"{base.__module__}:{base.__qualname__}" for base in trial_class.__mro__}
    packages = {base.__module__.partition(".")[0] for base in trial_class.__mro__}
    for framework in frameworks.values():
        if framework.trial_class.partition(":")[0].partition(".")[0] not in packages:
            continue
        target = import_object(framework.trial_class)
        if f"{target.__module__}:{target.__qualname__}" in ancestors:
            check_requirements(framework)
            return framework
    raise PluginNotFoundError(
        f"no installed plugin trains {trial_class.__module__}.{trial_class.__qualname__}; "
        f"installed frameworks: {', '.join(sorted(frameworks)) or 'none'}.\n"
        "Subclass a trial class that a framework plugin provides. If the plugin is installed, "
        "check whether it is disabled or broken:\n  detcore plugins doctor"
    )


def check_requirements(framework: Framework) -> None:
    """Raise `PluginNotFoundError` if a module that a framework requires is not installed."""
    for module in framework.requires:
        if module in sys.modules:
            continue
        if importlib.util.find_spec(module) is None:
            raise PluginNotFoundError(
                f"the framework {framework.name!r} needs {module!r}, which is not installed.\n"
                f"  {framework.install_hint or 'pip install ' + module}"
            )
