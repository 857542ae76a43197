"""Photo to tensors, heads to boxes: run in workers."""
