"""Exit codes of workers."""

EXIT_ERROR = 1
EXIT_INVALID_HP = 65
EXIT_TEMPFAIL = 75
# Another worker has failed, but it may exit later.
EXIT_PEER_LOST = 76
# EX_CONFIG of sysexits: every start ends in the same way until the user changes something.
EXIT_CONFIG = 78
