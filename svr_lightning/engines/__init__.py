"""What samples completions: a protocol and its implementations."""
