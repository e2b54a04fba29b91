"""Suite for storage back ends."""
