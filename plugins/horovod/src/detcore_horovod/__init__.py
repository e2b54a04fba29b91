"""Horovod's rendezvous, through which ``hvd.init()`` finds the other workers of a detcore job."""

__version__ = "0.1.0"

__all__ = ["__version__"]
