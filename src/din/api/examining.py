"""Handlers that have models looked at: POST /api/v1/models/{model}/profile and /verify."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from din.api.asgi import json_response, only_query, read_body
from din.api.decoding import decode_json
from din.api.limits import FrontLimits
from din.api.peers import caller_of_request
from din.api.signature import model_id_of
from din.api.tenants import manifest_for
from din.domain.profile import ProfileModel, VerifyModel
from din.domain.trust import Caller
from din.gateway.service import ExamineService, InferenceService

_PROFILE: Final = msgspec.json.Decoder(ProfileModel)
_VERIFY: Final = msgspec.json.Decoder(VerifyModel)


class ExamineRoutes:
    """One method per route."""

    def __init__(
        self, examination: ExamineService, inference: InferenceService, limits: FrontLimits
    ) -> None:
        self._examination = examination
        self._inference = inference
        self._limits = limits

    async def profile(self, request: Request) -> Response:
        """POST /api/v1/models/{model}/profile?version=N."""
        body = await read_body(request, self._limits.probe_body_bytes_max, "the order to profile")
        asked = decode_json(_PROFILE, body or b"{}", "the order to profile")
        model_id, version, caller = self._model(request)
        found = await self._examination.profile_model(model_id, version, asked, caller)
        return json_response(found)

    async def verify(self, request: Request) -> Response:
        """POST /api/v1/models/{model}/verify?version=N: 200 also when the slices are wrong."""
        body = await read_body(request, self._limits.probe_body_bytes_max, "the order to verify")
        asked = decode_json(_VERIFY, body or b"{}", "the order to verify")
        model_id, version, caller = self._model(request)
        found = await self._examination.verify_model(model_id, version, asked, caller)
        return json_response(found)

    def _model(self, request: Request) -> tuple[str, str | None, Caller]:
        only_query(request, "version")
        model_id = model_id_of(request.path_params["model"])
        version = request.query_params.get("version")
        caller = caller_of_request(request)
        manifest_for(self._inference, caller, model_id, version)
        return model_id, version, caller
