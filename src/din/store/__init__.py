"""Effects: durable state."""
