"""Who may call the API: keys, browser sessions, and requests that are carried out once."""
