"""Train, validate and export in a trial; `estimator_controller` puts these parts together."""
