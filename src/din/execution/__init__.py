"""Pure core: what a node does with frames, slots and workers."""
