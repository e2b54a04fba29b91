"""How metrics of several batches and workers become one. Pure; imports no NumPy."""

from detcore.metrics._merge import weighted_mean
from detcore.metrics._reducer import FunctionReducer, MetricReducer, interleave

__all__ = ["FunctionReducer", "MetricReducer", "interleave", "weighted_mean"]
