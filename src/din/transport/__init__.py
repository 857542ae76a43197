"""Effects: links between processes and machines."""
