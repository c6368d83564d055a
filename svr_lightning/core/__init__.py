"""The method as functions on plain values: no I/O, no clock, no global random state."""
