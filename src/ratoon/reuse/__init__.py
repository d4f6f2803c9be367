"""What was said before and is used again: pure, standard library only."""
