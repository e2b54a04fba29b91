"""Prepare the items of Sequences in this thread, in threads or in processes.

Imports only NumPy and the standard library, so that its worker processes stay light until the
user's own code makes them import more.
"""

from detcore_keras._loader._loader import SequenceLoader

__all__ = ["SequenceLoader"]
