"""Import PyTorch and check its version, in this module only; check those of other libraries.

All other modules import it from here: ``from detcore_torch.libraries import torch``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.errors import PluginError, PluginNotFoundError

if TYPE_CHECKING:
    from types import ModuleType

_OLDEST = (2, 2)

try:
    import torch as torch  # the other modules import it from here
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        f"detcore-torch needs PyTorch, but {error.name!r} is not installed.\n"
        "PyTorch is not installed with the plugin, because its version and its CPU or GPU form "
        "are yours to choose.\n"
        '  pip install "torch>=2.2"'
    ) from error

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST:
    raise PluginError(
        f"detcore-torch needs PyTorch 2.2 or newer; this environment has {torch.__version__}.\n"
        '  pip install "torch>=2.2"'
    )


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
    first, last = (".".join(map(str, version)) for version in (oldest, before))
    wanted = f"{name}>={first},<{last}"
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
