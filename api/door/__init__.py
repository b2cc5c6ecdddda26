"""The checks around every request, outside its route: host name, (local) token, right, rate limit, lane, and drain."""
