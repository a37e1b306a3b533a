"""What a bounded look at a topic shows: for `check --live`, and for a topology that is proposed for it."""
