"""Scores with their statistics, pictures, videos, charts and the report page."""
