"""`python -m din.unseal`: checks and decrypts slices into sealed memory, then ends."""
