"""Who may call the API: tokens, browser sessions, and requests that are carried out once."""
