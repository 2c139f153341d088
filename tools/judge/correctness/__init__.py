"""What is right: references, inputs, gates, and how outputs are compared."""
