"""The structured memory: schema, state, tools made from it (pure, in process); and ``journal``, the durable store."""
