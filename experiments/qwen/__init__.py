"""Qwen2.5-Coder on GSM8K."""
