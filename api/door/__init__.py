"""The checks around every request, outside its route: host name, token, right, rate limit, lane, and drain."""
