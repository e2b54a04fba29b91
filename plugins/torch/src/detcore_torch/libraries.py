"""Import PyTorch and check its version; check the versions of other libraries.

All other modules import PyTorch from here: ``from detcore_torch.libraries import torch``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.errors import PluginError, PluginNotFoundError

if TYPE_CHECKING:
    from types import ModuleType

_MIN_VERSION = (2, 2)

try:
    import torch as torch  # the other modules import it from here
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        f"detcore-torch needs PyTorch, but {error.name!r} is not installed.\n"
        "The plugin does not install PyTorch, so that you can choose the version and the CPU or "
        "GPU build.\n"
        '  pip install "torch>=2.2"'
    ) from error

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _MIN_VERSION:
    raise PluginError(
        f"detcore-torch needs PyTorch 2.2 or newer; this environment has {torch.__version__}.\n"
        '  pip install "torch>=2.2"'
    )


def import_supported(
    name: str, oldest: tuple[int, ...], before: tuple[int, ...], extra: str
) -> ModuleType:
    """Import a library and check its version.

    Args:
        name: Module of the library.
        oldest: The oldest supported version.
        before: The first version that is not supported.
        extra: The extra of detcore-torch that installs it.

    Raises:
        PluginNotFoundError: If the library is not installed.
        PluginError: If its version is not supported.
    """
    first, last = (".".join(map(str, bound)) for bound in (oldest, before))
    requirement = f"{name}>={first},<{last}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            f"this part of detcore-torch needs {name}, but {error.name!r} is not installed.\n"
            f'  pip install "detcore-torch[{extra}]"'
        ) from error
    parts = str(module.__version__).split(".")
    version = tuple(int(part) for part in parts[:2] if part.isdigit())
    if not oldest <= version < before:
        raise PluginError(
            f"detcore-torch supports {requirement}; "
            f"this environment has {name} {module.__version__}.\n"
            "Other versions call their callbacks in another order, so a resumed run could differ "
            f'unnoticed.\n  pip install "{requirement}"'
        )
    return module
