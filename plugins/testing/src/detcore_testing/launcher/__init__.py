"""Suite for launchers."""
