"""The migrations of the database schema. They are a package, so that an installed program finds them."""
