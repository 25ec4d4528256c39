"""What Numba compiles for the decode loop; drafts without a model and goodput have theirs beside them."""
