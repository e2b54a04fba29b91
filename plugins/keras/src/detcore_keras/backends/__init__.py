"""Keras's back ends: TensorFlow with Keras 2 or Keras 3, JAX and PyTorch, behind one interface."""
