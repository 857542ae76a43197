"""Effects: bytes by their hash."""
