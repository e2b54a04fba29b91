"""Find the function of a framework's plugin that starts native training in a script."""

from __future__ import annotations

import sys
from typing import Any

from detcore.contract.errors import PluginNotFoundError
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.trial import check_requirements, import_object


def native_init(name: str) -> Any:
    """Return the function that a framework's plugin registered as ``native_init``.

    Args:
        name: The framework's name.

    Raises:
        PluginNotFoundError: If no plugin provides it, or a required package is not installed.
    """
    environment = read_environment()
    manager = PluginManager(environment)
    framework = manager.frameworks().get(name)
    if framework is None or framework.native_init is None:
        raise PluginNotFoundError(
            f"no installed plugin provides detcore.experimental.{name}.init.\n"
            f"Install it into this environment ({sys.prefix}):\n"
            f"  pip install detcore-{name}\n"
            "If it is installed, it may be disabled or broken. Check with: detcore plugins doctor"
        )
    check_requirements(framework)
    return import_object(framework.native_init)
