"""What makes self-verification collapse into doubt, and what prevents it."""
