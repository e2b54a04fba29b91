"""Implement training, evaluation and prediction of `detcore_estimator.Estimator`."""
