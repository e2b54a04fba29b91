"""Imports that need the extra ``detcore[server]``, with an error that says how to install it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from detcore.errors import RunError

__all__ = ["server_extra"]


@contextlib.contextmanager
def server_extra() -> Iterator[None]:
    """Explain how to install a package that an import in the block does not find.

    Raises:
        RunError: If a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise RunError(
            f"the server needs a package that is not here: {error.name}.\n"
            "Install it with: pip install 'detcore[server]'"
        ) from error
