"""Bytes to domain and back. Knows no socket, no clock; codecs have vectors in docs/protocol."""
