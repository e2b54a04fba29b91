"""Who a worker is among the workers of its trial, and how they exchange small values."""

from detcore.distributed._context import DistributedContext

__all__ = ["DistributedContext"]
