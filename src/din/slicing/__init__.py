"""Deciding with onnx: graph analysis, cuts, emission of slices."""
