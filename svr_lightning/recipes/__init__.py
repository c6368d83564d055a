"""Training methods, one per file. A configuration names a class; nothing else knows the names."""
