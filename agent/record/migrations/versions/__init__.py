"""One file a revision, numbered; a new one is added to `agent.record.schema.SHIPPED`."""
