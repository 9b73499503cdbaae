"""Images: specified in containers/images.yaml, built, imported, checked; `muster image`."""
