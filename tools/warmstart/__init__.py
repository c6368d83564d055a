"""Builds the policies that ship with the package."""
