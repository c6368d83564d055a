"""A busy machine fails no test of drawn texts: where time matters, processor time is bounded."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
