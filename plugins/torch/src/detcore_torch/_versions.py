"""Libraries that adapters need, in the versions that they support."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.errors import PluginError, PluginNotFoundError

if TYPE_CHECKING:
    from types import ModuleType


def supported(
    name: str, oldest: tuple[int, ...], before: tuple[int, ...], extra: str
) -> ModuleType:
    """Import a library and check its version.

    Args:
        name: Its module.
        oldest: The oldest supported version.
        before: The first version that is not supported.
        extra: The extra of detcore-torch that installs it.

    Raises:
        PluginNotFoundError: If it is not installed.
        PluginError: If its version is not supported.
    """
    wanted = f"{name}>={_dotted(oldest)},<{_dotted(before)}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            f"this part of detcore-torch needs {name}, but {error.name!r} is not installed.\n"
            f'  pip install "detcore-torch[{extra}]"'
        ) from error
    parts = str(module.__version__).split(".")
    found = tuple(int(part) for part in parts[:2] if part.isdigit())
    if not oldest <= found < before:
        raise PluginError(
            f"detcore-torch supports {wanted}; this environment has {name} {module.__version__}.\n"
            "Other versions call their callbacks in another order, so a resumed run could differ "
            f'unnoticed.\n  pip install "{wanted}"'
        )
    return module


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
