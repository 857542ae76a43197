"""What people name by its id, or by the start of it."""

from __future__ import annotations

from din.client.client import Client
from din.client.http import Answer
from din.errors import Conflict, NotFound


def find_model(client: Client, model: str) -> Answer:
    """One model by its id or the start of it. Raises NotFound or Conflict."""
    try:
        return client.model_answer(model)
    except NotFound as error:
        ids = [each.model_id for each in client.models().items if each.model_id.startswith(model)]
        if not ids:
            raise
        if len(ids) > 1:
            raise Conflict(
                f"{model!r} is the start of {len(ids)} model ids",
                hint=f"one of {', '.join(sorted(ids)[:8])}",
            ) from error
        return client.model_answer(ids[0])
