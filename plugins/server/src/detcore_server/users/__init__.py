"""Users: passwords, tokens, and the guards of the routes."""
