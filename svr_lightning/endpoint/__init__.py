"""Adaptive inference against a server that speaks the OpenAI chat-completions protocol."""
