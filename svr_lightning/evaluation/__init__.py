"""How a policy is judged: adaptive inference, results files, replay of recorded samples."""
