"""The checks around every request, outside its route: host name, API key, right, rate limit, lane, and drain."""
