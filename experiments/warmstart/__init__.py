"""Builds the policy that ships with the package."""
