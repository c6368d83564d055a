"""A policy: its weights, tokenizer, adapter, and what keeps an engine up to date with them."""
