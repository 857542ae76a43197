"""A deployment as requests see it, and the choice of its replicas."""
