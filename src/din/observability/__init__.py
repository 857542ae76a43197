"""Pure core of seeing: where the time of a request went."""
