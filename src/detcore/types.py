"""Small values that several packages exchange: the names of `detcore.contract.values`."""

from detcore.contract.values import *  # noqa: F403  (all of it, and nothing else)
from detcore.contract.values import __all__ as __all__
