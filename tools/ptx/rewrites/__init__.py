"""Rewrites of PTX text that keep what a kernel computes: each says under which condition, and what it may change."""

from tools.ptx.rewrites.base import CannotRewrite, Rewrite
from tools.ptx.rewrites.catalogue import CATALOGUE, options, rewritten
from tools.ptx.rewrites.launched import Launched

__all__ = ["CATALOGUE", "CannotRewrite", "Launched", "Rewrite", "options", "rewritten"]
