"""Gluon: Triton with layouts, barriers and asynchronous copies said by the author."""
