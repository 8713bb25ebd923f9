"""What a run will cost: times of its parts, and what follows from them for every stage."""
