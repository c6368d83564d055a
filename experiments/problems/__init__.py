"""Makes the problems that ship with the package, and those that its policies learned from."""
