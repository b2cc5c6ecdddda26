"""The requests and responses of the API as types that server and clients share. They need no web framework."""
