"""The errors that detcore raises on purpose: the names of `detcore.contract.errors`."""

from detcore.contract.errors import *  # noqa: F403  (all of it, and nothing else)
from detcore.contract.errors import __all__ as __all__
