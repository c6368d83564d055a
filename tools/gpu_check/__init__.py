"""Measurements that need a GPU, on random weights and without network."""
