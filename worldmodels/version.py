"""The version of the distribution; CITATION.cff has the same."""

__version__ = "0.1.0"
