"""The configuration: its schema, checks, help text, and what is shipped beside the code."""
