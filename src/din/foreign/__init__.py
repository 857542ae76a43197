"""Client of servers that speak the Open Inference Protocol v2 over HTTP."""
