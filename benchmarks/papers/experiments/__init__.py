"""What is run for the entries of the catalogue."""
