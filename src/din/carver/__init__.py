"""The process that parses untrusted models and makes slices."""
