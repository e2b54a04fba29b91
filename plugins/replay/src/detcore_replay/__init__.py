"""Replay steps of a trial, find where two runs diverge, debug trials, and verify data ledgers."""

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_replay.ledger_proof import EpochReport, LedgerReport, verify_ledger
    from detcore_replay.trial_instance import create_trial_instance

__version__ = "0.1.0"

__all__ = [
    "EpochReport",
    "LedgerReport",
    "__version__",
    "create_trial_instance",
    "verify_ledger",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ledger_proof": "EpochReport LedgerReport verify_ledger",
        "trial_instance": "create_trial_instance",
    },
)
