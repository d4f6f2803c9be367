"""Measuring a running server."""
