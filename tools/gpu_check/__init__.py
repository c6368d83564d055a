"""One command that measures what only a GPU can tell, on random weights and without network."""
