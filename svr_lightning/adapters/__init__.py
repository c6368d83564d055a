"""Ways to use this package from other libraries, one file each, which alone imports the library.

docs/extending.md shows each of them at work.
"""
