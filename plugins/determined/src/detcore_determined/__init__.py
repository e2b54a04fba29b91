"""What users of Determined need to move to detcore: the command ``detcore migrate``."""

__version__ = "0.1.0"

__all__ = ()
