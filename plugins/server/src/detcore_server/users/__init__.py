"""Users, passwords, tokens and route guards."""
