"""The loader behind Sequences: items prepared in this thread, in threads or in processes.

Imports NumPy and the standard library only, so that its worker processes are light until the
user's own code makes them import more.
"""

from detcore_keras._loader._loader import SequenceLoader

__all__ = ["SequenceLoader"]
