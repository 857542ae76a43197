"""Whose model it is: a model of another tenant is answered for as one that does not exist."""

from __future__ import annotations

from din.access.scopes import sees
from din.domain.model import ModelManifest
from din.domain.trust import Caller
from din.errors import NotFound
from din.gateway.service import InferenceService


def manifest_for(
    inference: InferenceService, caller: Caller, model_id: str, version: str | None = None
) -> ModelManifest:
    """A model that the caller may use. Raises NotFound, in the same words for none at all and for
    another tenant's; suggestions, which name others, are for those who see all."""
    try:
        manifest = inference.manifest(model_id)
    except NotFound:
        if "admin" in caller.scopes:
            raise
        raise _absent(model_id) from None
    if not sees(caller, manifest.tenant):
        raise _absent(model_id)
    return manifest if version is None else inference.manifest(model_id, version)


def _absent(model_id: str) -> NotFound:
    return NotFound(f"no model {model_id!r} is registered", hint="`din model list` shows yours")
