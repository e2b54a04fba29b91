"""How a trial reports to a server: its records, and what sends its spool.

Apart from `detcore.remote`, because it needs the libraries of the record store.
"""

from detcore.remote._checkpoints import checkpoint_from_document, checkpoint_to_document
from detcore.remote._deliver import SentSpool, send_spools
from detcore.remote._reach import Reach
from detcore.remote._records import RemoteRecords
from detcore.remote._sender import SpoolSender

__all__ = [
    "Reach",
    "RemoteRecords",
    "SentSpool",
    "SpoolSender",
    "checkpoint_from_document",
    "checkpoint_to_document",
    "send_spools",
]
