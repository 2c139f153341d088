"""What rows look like: a file for each family of formats."""
