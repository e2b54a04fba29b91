"""Every hook: the names of `detcore.contract.hooks`."""

from detcore.contract.hooks import *  # noqa: F403  (all of it, and nothing else)
from detcore.contract.hooks import __all__ as __all__
