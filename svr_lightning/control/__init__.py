"""Adaptive inference for other programs: a controller over any chat client, and a server."""
