"""OpenAI's API on this knowledge base's decoder: completions, chat and models, with citations beside the text."""
