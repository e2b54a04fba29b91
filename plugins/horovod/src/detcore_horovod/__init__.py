"""Horovod's rendezvous: how ``hvd.init()`` finds the other workers of a job of detcore."""

__version__ = "0.1.0"

__all__ = ["__version__"]
