"""Implement `detcore_estimator.Estimator`: training, evaluation and prediction without a trial."""
