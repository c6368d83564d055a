"""Pictures of recorded trajectories: numbers first, then drawings of those numbers alone."""
