"""`nox -s demo`: one command that shows what the project is for."""
