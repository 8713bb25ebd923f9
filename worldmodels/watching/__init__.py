"""An agent or a person in the environment, live: on a page in a browser, or in a window."""
