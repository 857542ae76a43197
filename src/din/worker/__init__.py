"""The process that holds one slice."""
