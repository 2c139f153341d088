"""The commands of `optimize`, one file each."""
