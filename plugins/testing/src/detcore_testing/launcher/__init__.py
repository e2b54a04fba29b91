"""The suite for launchers."""
