"""Mirrors detcore's trials into MLflow. Everything is in `detcore_mlflow.plugin`'s hooks."""

__version__ = "0.1.0"

__all__ = ["__version__"]
