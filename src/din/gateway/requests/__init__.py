"""From a request to its answer, by links or in workers on this host."""
