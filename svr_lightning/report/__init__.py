"""Recorded runs side by side: figures, tables for a paper, and a page to read."""
