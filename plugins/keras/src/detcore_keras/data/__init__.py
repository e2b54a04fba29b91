"""Training data in resumable order: feeds of arrays, Sequences and ``tf.data`` datasets."""
