"""What crosses HTTP, as a server and its clients both know it. It needs no web framework."""
