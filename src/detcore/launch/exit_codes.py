"""The exit codes of workers."""

EXIT_ERROR = 1
EXIT_INVALID_HP = 65
EXIT_TEMPFAIL = 75
# Another worker is to blame, though it may take longer to end.
EXIT_PEER_LOST = 76
# As EX_CONFIG of sysexits: until the user changes something, every start ends in the same way.
EXIT_CONFIG = 78
