"""How a policy is run on problems: adaptive inference and its records."""
