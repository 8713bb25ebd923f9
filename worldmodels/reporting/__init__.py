"""Results made visible: scores, pictures, films and the report page."""
