"""The Python client: `din.Client`."""

from din.client.client import Client
from din.client.result import Inference

__all__ = ["Client", "Inference"]
