"""Mirror detcore trials to MLflow. `detcore_mlflow.plugin` contains the hooks."""

__version__ = "0.1.0"

__all__ = ["__version__"]
