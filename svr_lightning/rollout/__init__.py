"""Rollouts: prompts to tokens, completions to turns, turns to graded groups."""
