"""The search method `optuna`: any sampler and pruner of Optuna."""

__version__ = "0.1.0"

__all__ = ["__version__"]
