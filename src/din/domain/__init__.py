"""The words of DIN: frozen structs that import nothing of din but errors."""
