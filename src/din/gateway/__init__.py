"""The gateway's own logic: fleet, deployments, routing, dispatch. Knows no onnx, no HTTP words."""
