"""Keys and keysets: made or stored in bulk, calibrated, compared, and one keyset activated to answer lookups."""
