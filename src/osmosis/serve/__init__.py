"""Placeholder until the package lands."""
