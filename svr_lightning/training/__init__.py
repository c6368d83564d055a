"""How a policy learns: the Lightning module, its fit loop, its data and its checkpoints."""
