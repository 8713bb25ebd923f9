"""Real environments as lanes of a vector environment: engines, pixels, displays, random actions."""
