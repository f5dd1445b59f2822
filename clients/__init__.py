"""The client half of each method, one file where it differs from `sgd`."""
