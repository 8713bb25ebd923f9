"""Training of the controller: CMA-ES and the fitness of a population."""
