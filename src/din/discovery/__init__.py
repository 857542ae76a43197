"""Pure core: who is here. Membership and registration rules over injected time; no sockets."""
