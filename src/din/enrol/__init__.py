"""`python -m din.enrol`: joins a machine to a cluster and renews its certificate, then ends."""
