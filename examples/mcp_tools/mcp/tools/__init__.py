"""Importing this package registers every tool."""

from . import math

__all__ = ["math"]
