"""A candidate's Python run once in a confined process without a GPU, which leaves a launch plan."""
