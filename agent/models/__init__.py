"""Language models: what is asked, what comes back, what it costs, what can go wrong."""
