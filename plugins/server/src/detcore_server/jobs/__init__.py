"""Submitted experiments: uploaded, checked, recorded, queued and run."""
