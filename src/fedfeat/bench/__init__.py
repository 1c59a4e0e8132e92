"""Speed on this machine's GPU, as ratios to a plain loop in the same run."""
