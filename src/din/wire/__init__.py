"""Bytes to domain and back. Knows no socket, no clock; each codec has test vectors in docs/protocol."""
