"""What the sessions of noxfile.py are made of."""
