"""What tests and the demo share: a training run on a real cluster, seen through its files."""
