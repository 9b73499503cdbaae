"""What muster knows of Slurm's files: a linter of batch scripts, and its configuration rendered."""
