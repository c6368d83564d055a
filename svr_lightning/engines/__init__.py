"""Engines sample completions: the protocol and its implementations."""
