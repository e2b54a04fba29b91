"""The suite for storage back ends."""
