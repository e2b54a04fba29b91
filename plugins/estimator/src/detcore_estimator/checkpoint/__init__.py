"""Read and write the TensorFlow files of a checkpoint."""
