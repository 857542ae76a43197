"""The version, where every program can read it without importing anything else."""

__version__ = "0.1.0"
