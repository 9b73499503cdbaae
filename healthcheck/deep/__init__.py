"""Burn-in: what takes minutes and needs the node for itself, alone and in pairs."""
