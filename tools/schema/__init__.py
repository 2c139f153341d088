"""What processes say to each other, as data: tasks, launch plans, verdicts, messages, and how they are encoded.

Imports no other package of ours."""
