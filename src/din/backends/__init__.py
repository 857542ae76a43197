"""Effects: inference engines behind one small face."""
