"""Values that plugins register and observers get: the names of `detcore.contract.hook_values`."""

from detcore.contract.hook_values import *  # noqa: F403  (all of it, and nothing else)
from detcore.contract.hook_values import __all__ as __all__
