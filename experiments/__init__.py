"""Experiments behind the published results; the package imports none of them."""
