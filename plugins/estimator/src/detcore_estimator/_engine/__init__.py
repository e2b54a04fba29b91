"""The stand-alone `detcore_estimator.Estimator`: training, evaluation and prediction by itself."""
