"""Effects: durable state. Eight verbs and a list, one conformance suite, any engine behind."""
