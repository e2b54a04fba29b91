"""Define and check the specs and settings that users create."""
