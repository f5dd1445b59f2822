"""Engine of the attacks: simulated observations, their distance from the real one, priors and searches."""
