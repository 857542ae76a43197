"""Open Inference Protocol v2 without inference: server and model metadata, health."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from din.api.asgi import json_response
from din.api.peers import caller_of_request
from din.api.signature import model_id_of
from din.api.tenants import manifest_for
from din.domain.tensor import TensorSpec
from din.gateway.service import InferenceService
from din.version import __version__

EXTENSIONS: Final = ("binary_tensor_data", "din_execution_trace")


class MetadataRoutes:
    """Handlers of GET /v2 and below."""

    def __init__(self, inference: InferenceService) -> None:
        self._inference = inference

    async def server(self, _request: Request) -> Response:
        """GET /v2."""
        return json_response({"name": "din", "version": __version__, "extensions": EXTENSIONS})

    async def live(self, _request: Request) -> Response:
        """GET /v2/health/live: this answer is the proof."""
        return json_response({"live": True})

    async def ready(self, _request: Request) -> Response:
        """GET /v2/health/ready; both words, because the protocol's text prints the wrong one."""
        is_ready = self._inference.is_gateway_ready()
        return _ready_response({"ready": is_ready, "live": True}, is_ready=is_ready)

    async def model(self, request: Request) -> Response:
        """GET /v2/models/{m}."""
        model_id, version = _model_of(request)
        manifest = manifest_for(self._inference, caller_of_request(request), model_id, version)
        return json_response(
            {
                "name": manifest.model_id,
                "versions": [manifest.version],
                "platform": "onnx",
                "inputs": [_tensor(spec) for spec in manifest.inputs],
                "outputs": [_tensor(spec) for spec in manifest.outputs],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        """GET /v2/models/{m}/ready."""
        model_id, version = _model_of(request)
        manifest = manifest_for(self._inference, caller_of_request(request), model_id, version)
        is_ready = self._inference.is_ready(model_id, version)
        return _ready_response({"name": manifest.model_id, "ready": is_ready}, is_ready=is_ready)


def _ready_response(content: dict[str, Any], *, is_ready: bool) -> Response:
    response = json_response(content, 200 if is_ready else 503)
    if not is_ready:
        response.headers["retry-after"] = "1"
    return response


def _model_of(request: Request) -> tuple[str, str | None]:
    return model_id_of(request.path_params["model"]), request.path_params.get("version")


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.dtype, "shape": spec.oip_shape()}
