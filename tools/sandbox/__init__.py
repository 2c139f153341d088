"""Confined processes: namespaces, Landlock and seccomp, the fork server, and the workers that it forks."""
