"""Keys and keysets: made, calibrated, compared, and which of them answers."""
