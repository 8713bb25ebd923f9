"""Search: CMA-ES over controllers and the fitness of a population."""
