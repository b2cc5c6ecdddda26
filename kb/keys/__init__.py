"""Keys and keysets: made, calibrated, compared, and one of them activated to answer lookups."""
