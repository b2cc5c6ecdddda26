"""What requests may say and answers look like, and their description."""
