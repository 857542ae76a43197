"""The authority of a cluster, signatures, sealed bytes; the only room with `cryptography`."""
