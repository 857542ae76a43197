"""What a caller may do, how often, and what is written down of it. Pure."""
