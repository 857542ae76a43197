"""The gateway's own logic: fleet, deployments, routing, dispatch. Knows neither onnx nor HTTP words."""
