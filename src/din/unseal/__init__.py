"""`python -m din.unseal`: checks and opens slices for a node's agent, then ends. On a node this
and `din.enrol` are the programs that hold the node's key and import `cryptography`."""
