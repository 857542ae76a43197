"""din.Client: the gateway from Python."""
