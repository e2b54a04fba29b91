"""Let Horovod's workers find each other in trials and under ``detcore launch``."""

__version__ = "0.1.0"

__all__ = ()
