"""Who a worker is among the workers of its trial, and how they exchange small values."""

from detcore.distributed._context import DistributedContext
from detcore.distributed._launchers import launcher_variables

__all__ = ["DistributedContext", "launcher_variables"]
