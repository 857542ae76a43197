"""The node's own program."""
