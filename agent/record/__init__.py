"""What happened, kept: events, and the database that holds them."""
